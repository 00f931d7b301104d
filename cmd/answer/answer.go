// Package answer defines the JSON documents in which Fairlead describes itself. Package pages of
// cmd/fairlead makes them. kubectl-fairlead shows them without linking what they are made from.
//
// A document must be used by one goroutine at a time.
package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer/rules"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// Below is the path prefix of the pages on the front door.
const Below = "/fairlead"

// Status is the state of this replica: the response to /status.
type Status struct {
	Time time.Time `json:"time"` // when the document was made
	// Version and Go are those of the build. Started is when the process began to serve.
	Version string    `json:"version"`
	Go      string    `json:"go"`
	Started time.Time `json:"started"`
	Replica string    `json:"replica,omitempty"`  // host name, which a pod has from its node or itself. Empty: unknown
	Cluster string    `json:"cluster,omitempty"`  // the kubeconfig's name for the cluster. Empty: none, as in a pod
	Ready   string    `json:"notReady,omitempty"` // why this replica accepts no requests. Empty: it does
	Checks  []Check   `json:"checks"`             // this replica's own needs, in a fixed order
	// Generation counts the tables of this process. Complete means that each source was read once.
	Generation    uint64         `json:"generation"`
	Complete      bool           `json:"complete"`
	APIServices   []APIService   `json:"apiServices"`             // by groupPriorityMinimum, then name, as in discovery
	LocalServers  []Endpoint     `json:"localAPIServers"`         // the local apiservers. Empty means none
	LocalIdentity string         `json:"localIdentity,omitempty"` // --local-identity. Empty: no local apiserver
	LocalTrust    *trust.Status  `json:"localTrust,omitempty"`    // of the bundle that verifies them. Nil: none
	Certificates  []certs.Status `json:"certificates"`            // the key pairs and bundles of this process
	Problems      []string       `json:"problems,omitempty"`      // faults of the registry, of no APIService
	// Notes say which of two sources has what both have, what is not listed, and where local apiservers' limits refuse.
	Notes []string `json:"notes,omitempty"`
	// Handshakes say why those of clients failed in the last hour, for each port the most frequent cause first.
	Handshakes  []string      `json:"handshakes,omitempty"`
	Transitions []Transition  `json:"transitions"`     // the last changes of verdicts, newest first
	Rules       []*rules.Rule `json:"rules,omitempty"` // the policy's: the hundred that have refused most
}

// APIService is one entry of the table.
type APIService struct {
	Name    string `json:"name"`    // version.group, as in metadata.name
	Group   string `json:"group"`   // that it claims
	Version string `json:"version"` // that it claims
	Kind    string `json:"kind"`    // local, remote, or refused: a remote that claims a protected group
	// GroupPriority and VersionPriority are groupPriorityMinimum and versionPriority.
	GroupPriority   int32  `json:"groupPriorityMinimum"`
	VersionPriority int32  `json:"versionPriority"`
	Service         string `json:"service,omitempty"` // namespace/name:port, or URLs in its place. Empty for Local
	// Front is the Service, Fairlead's, to which the cluster's own aggregator sends it, and
	// FrontSays that aggregator's verdict. Empty means that it does not.
	Front      string `json:"front,omitempty"`
	FrontSays  string `json:"frontSays,omitempty"`
	ServerName string `json:"serverName,omitempty"` // the verified TLS name, or some, comma-separated. Empty for Local
	Owner      string `json:"owner,omitempty"`      // whom to notify of a failure (annotation owner). Empty: nobody
	// Verdict tells whether requests are sent there, in the words of its Available condition.
	Verdict registry.Verdict `json:"verdict"`
	// Cause is what is wrong, Advice what to check, Command what to run, Runbook where to read on.
	// Empty means that all is well, or that no help is known.
	Cause   string `json:"cause,omitempty"`
	Advice  string `json:"advice,omitempty"`
	Command string `json:"command,omitempty"`
	Runbook string `json:"runbook,omitempty"`
	Flaps   int    `json:"flaps,omitempty"` // how often it became unavailable in the last hour, by Transitions
	// Endpoints are the addresses that Fairlead may dial; in an explanation of a local request, the local apiservers.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// InFlight and LongRunning count the requests in flight; the limits are the policy's.
	InFlight       int64 `json:"inFlight"`
	LongRunning    int64 `json:"longRunning"`
	MaxInFlight    int   `json:"maxInFlight,omitempty"`
	MaxLongRunning int   `json:"maxLongRunning,omitempty"`
	// Limits are those at which requests are, or were in the last minutes, refused, worst first. Empty means none.
	Limits      []bound.Limit `json:"limits,omitempty"`
	Traffic     *Traffic      `json:"traffic,omitempty"`     // its latencies. Nil: it had no requests lately
	Maintenance string        `json:"maintenance,omitempty"` // the annotation's message. Empty: not in maintenance
	Trust       *trust.Status `json:"trust,omitempty"`       // of the bundle that verifies the backend. Nil for Local
	// Discovery and OpenAPI tell how current its part of them is. Nil for Local and the core group.
	Discovery *discovery.Status `json:"discovery,omitempty"`
	OpenAPI   *openapi.Status   `json:"openapi,omitempty"`
	Problems  []string          `json:"problems,omitempty"` // faults of the object that Fairlead works around
	// BackendOf is the APIService of which this is a further backend, by the policy, and Standby
	// says that it answers only in place of the APIService's own. Empty: it is an APIService.
	BackendOf string `json:"backendOf,omitempty"`
	Standby   bool   `json:"standby,omitempty"`
	StandIn   string `json:"standIn,omitempty"` // the further backend that answers for it now. Empty: it does itself
	// Rule is the policy's place, file:line, of a further backend, or of the route that hides it. Empty means neither.
	Rule string `json:"rule,omitempty"`
}

// Endpoint is one address of a backend or of the local apiserver.
type Endpoint struct {
	Address string    `json:"address"`        // host:port
	Health  string    `json:"health"`         // unprobed, healthy or unhealthy
	Since   time.Time `json:"since,omitzero"` // when Health last changed. Zero means never
	// Slow endpoints get few requests, Terminating ones none while there are others, and Far ones,
	// which are meant for other zones, none while others are healthy.
	Slow        bool   `json:"slow,omitempty"`
	Terminating bool   `json:"terminating,omitempty"`
	Far         bool   `json:"far,omitempty"`
	Reason      string `json:"reason,omitempty"` // why it is unhealthy, in a word
	Error       string `json:"error,omitempty"`  // why it is unhealthy
	// Probed is when its last probe ended, ProbeSeconds how long it took, ProbeError why it failed. Zero: none has.
	Probed       time.Time `json:"probed,omitzero"`
	ProbeSeconds float64   `json:"probeSeconds,omitempty"`
	ProbeError   string    `json:"probeError,omitempty"`
	// GoAway is the last error with which it has ended a connection of HTTP/2, after the time.
	GoAway string `json:"goAway,omitempty"`
	// Release, Clients and Only describe a local apiserver: how many client connections stay with
	// it, and the group-versions that another one lacks. Empty means unknown, or none.
	Release string   `json:"release,omitempty"`
	Clients int64    `json:"clients,omitempty"`
	Only    []string `json:"only,omitempty"`
	// Serves says of a URL how many resources it serves, and a hash of their names. Empty: unknown.
	Serves   string   `json:"serves,omitempty"`
	InFlight int64    `json:"inFlight"`          // requests, long-running ones included
	Changes  []Change `json:"changes,omitempty"` // the last of its health, oldest first. Empty: none in this process
}

// Change is a change of an endpoint's health.
type Change struct {
	Time   time.Time `json:"time"`   // when the change was seen
	Health string    `json:"health"` // the new state
}

// Traffic describes the latencies of an APIService's requests, without long-running ones.
type Traffic struct {
	// Rate is requests per second, Errors those with 5xx, of this replica or the backend, or a cut response. P50 and
	// P99 are seconds from a request's arrival to its last byte. All cover the last minute; zero means no requests.
	Rate   float64 `json:"rate"`
	Errors float64 `json:"errors"`
	P50    float64 `json:"p50"`
	P99    float64 `json:"p99"`
	// Points are 99th percentiles in seconds, of each 10 s in the last 10 min, oldest first. Zero means no requests.
	Points []float64 `json:"points"`
}

// Transition is one change of an APIService's verdict.
type Transition struct {
	Time       time.Time `json:"time"`              // when the change was seen
	APIService string    `json:"apiService"`        // its name
	Status     string    `json:"status"`            // the new verdict's; "gone" is that of a deleted APIService
	Reason     string    `json:"reason,omitempty"`  // the new verdict's
	Message    string    `json:"message,omitempty"` // the new verdict's
}

// Explanation is what happens to a request: the response to /explain.
type Explanation struct {
	// Method, Path and Verb are the request's. Verb is the method unless it is for a resource.
	Method        string        `json:"method"`
	Path          string        `json:"path"`
	Verb          string        `json:"verb"`
	Destination   string        `json:"destination"`             // local, remote, document, page, health, or refused
	Why           []string      `json:"why"`                     // how the path leads to the destination, in steps
	Rules         []*rules.Rule `json:"rules,omitempty"`         // of the policy that match: a dry run, what decides
	APIService    *APIService   `json:"apiService,omitempty"`    // the entry that claims the path. Nil: none does
	Authorization string        `json:"authorization,omitempty"` // allowed, or denied and why. Empty: not checked here
	Identity      *Identity     `json:"identity,omitempty"`      // what is asserted to the destination. Nil: nothing
	Timeout       string        `json:"timeout,omitempty"`       // the class of the deadline and its length
	// Code and Message are the response's if Fairlead answers with an error, otherwise zero.
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Cause   string `json:"cause,omitempty"`  // why it is refused, or what is wrong although it is not. Empty: nothing
	Advice  string `json:"advice,omitempty"` // what to check. Empty means nothing
}

// Outcome returns Destination in words.
func (x *Explanation) Outcome() string {
	switch {
	case x.Destination == "local":
		return "forwarded to the local apiserver"
	case x.Destination == "remote" && x.APIService != nil:
		return "forwarded to " + x.APIService.Service
	case x.Destination == "document" || x.Destination == "page" || x.Destination == "health":
		return "answered by Fairlead"
	}
	return x.Destination
}

// Identity is a user as the destination sees it.
type Identity struct {
	// User, UID, Groups and Extra are the caller's.
	User    string              `json:"user"`
	UID     string              `json:"uid,omitempty"`
	Groups  []string            `json:"groups,omitempty"`
	Extra   map[string][]string `json:"extra,omitempty"`
	Headers []string            `json:"headers,omitempty"` // the added header fields, as name: value
	How     string              `json:"how"`               // the way in which the identity is passed
}

// Available reports whether requests are sent to the APIService.
func (a *APIService) Available() bool { return a.Verdict.Status == "True" && a.Maintenance == "" }

// Fails says what users notice although it is available: it is stale, or requests fail. Empty: fewer than three in the
// last minute, or than one of twenty, which is what the alert FairleadBackendErrors waits for.
func (a *APIService) Fails() string {
	if d := a.Discovery; a.Available() && d != nil && d.Stale && d.Reason != "pending" {
		return "it is listed as stale, so that no namespace can be deleted"
	}
	if t := a.Traffic; a.Available() && t != nil && t.Errors >= .05 && t.Errors >= .05*t.Rate {
		return fmt.Sprintf("%.0f%% of its requests in the last minute failed (%s)",
			100*min(1, t.Errors/t.Rate), Rate(t.Errors))
	}
	return ""
}

// Path returns the path of its discovery document.
func (a *APIService) Path() string {
	return (&registry.Entry{GroupVersion: schema.GroupVersion{Group: a.Group, Version: a.Version}}).Path()
}

// Why returns the details of the verdict, or the message of the maintenance.
func (a *APIService) Why() string { return cmp.Or(a.Maintenance, a.Verdict.Message) }

// Policy returns what the policy says of it, in words. Empty means nothing.
func (a *APIService) Policy() string {
	switch {
	case a.StandIn != "":
		return "answers now: standby " + a.StandIn
	case a.Standby:
		return "standby of " + a.BackendOf + " by the policy (" + a.Rule + ")"
	case a.BackendOf != "":
		return "further backend of " + a.BackendOf + " by the policy (" + a.Rule + ")"
	case a.hidden():
		return "hidden by the policy (" + a.Rule + "): answered with 404"
	}
	return ""
}

func (a *APIService) hidden() bool { return a.Rule != "" && a.BackendOf == "" }

// SetTrust sets Trust. An overlap of CAs, or what is ignored of a bundle, is what is wrong with it, if nothing else is.
func (a *APIService) SetTrust(t *trust.Status) {
	a.Trust = t
	until := "available until " + t.OverlapUntil.UTC().Format(time.TimeOnly) + " UTC only: "
	switch {
	case a.Cause != "" || !a.Available():
	case t.Fault != "" && !t.OverlapUntil.IsZero():
		a.Cause, a.Advice = until+t.Fault, "correct the bundle: until then the last good one is used"
	case t.OverlapInForce:
		a.Cause = until + "the backend presents a certificate that only the replaced CA verifies"
		a.Advice = "if the new CA bundle is right, renew the backend's certificate before then; if not, correct it"
	case t.Warning != "":
		a.Cause = "a part of its CA bundle is ignored: " + strings.ReplaceAll(t.Warning, "\n", "; ")
		a.Advice = "remove or repair that part"
	}
}

// Those returns the APIServices that match, in order.
func (s *Status) Those(match func(*APIService) bool) (list []*APIService) {
	for i := range s.APIServices {
		if a := &s.APIServices[i]; match(a) {
			list = append(list, a)
		}
	}
	return list
}

// Remotes returns the APIServices of extension servers.
func (s *Status) Remotes() []*APIService {
	return s.Those(func(a *APIService) bool { return a.Kind != "local" })
}

// Unavailable returns the APIServices that receive no requests, without those that the policy hides.
func (s *Status) Unavailable() []*APIService {
	return s.Those(func(a *APIService) bool { return !a.Available() && !a.hidden() })
}

// Healthy counts the endpoints that are healthy.
func (a *APIService) Healthy() (n int) {
	for _, e := range a.Endpoints {
		if e.Health == "healthy" {
			n++
		}
	}
	return n
}

// Expires returns when the backend can no longer be verified: when the first certificate that it presents, or that
// verifies one, expires; or, if none was seen lately, when the bundle's last one expires. Zero means unknown.
func (a *APIService) Expires() time.Time {
	if a.Trust == nil {
		return time.Time{}
	}
	var used, all []time.Time
	for _, c := range a.Trust.Leaves {
		used = append(used, c.NotAfter)
	}
	for _, c := range a.Trust.CAs {
		all = append(all, c.NotAfter)
		if c.Live {
			used = append(used, c.NotAfter)
		}
	}
	if len(used) > 0 {
		return slices.MinFunc(used, time.Time.Compare)
	}
	return slices.MaxFunc(append(all, time.Time{}), time.Time.Compare)
}

// Left returns how long a certificate is valid: whole days, or in the end hours. Zero is a dash.
func Left(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "–"
	case d <= 0:
		return "expired"
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// Urgency returns the colour of a certificate's end: bad on the last day, warn if it is soon, otherwise dim.
func Urgency(now, t time.Time) string {
	const soon = 7 * 24 * time.Hour // as long as in the shipped alerts
	switch d := t.Sub(now); {
	case t.IsZero() || d >= soon:
		return "dim"
	case d >= 24*time.Hour:
		return "warn"
	}
	return "bad"
}

// Ago returns how long ago t was, as kubectl prints ages. Zero is a dash.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(now.Sub(t), 0))
}

// Latency formats a latency in seconds with about two digits. Zero is a dash.
func Latency(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < .01:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	}
	return fmt.Sprintf("%.1fs", seconds)
}

// Rate formats a number of requests per second. Zero is a dash.
func Rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "-"
	case perSecond < .01:
		return "<0.01/s"
	case perSecond < .1:
		return fmt.Sprintf("%.2f/s", perSecond)
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
}

// Check is one of Fairlead's own needs: a right, a certificate, an apiserver.
type Check struct {
	Name string `json:"name"` // the runbooks of FairleadNotReady and FairleadCheckFailing list them
	// Status is passed, failed or unknown (not checked yet, or it cannot be), since Since. Zero means since the start.
	Status  string    `json:"status"`
	Since   time.Time `json:"since,omitzero"`
	Message string    `json:"message,omitempty"` // what is wrong, or what is known. Empty means nothing
	Users   string    `json:"users,omitempty"`   // what users notice: a sentence without its full stop. Empty: nothing
	Gates   bool      `json:"gates"`             // this replica is not ready while it fails
	// Advice is what to check, Command what to run, Runbook where to read on. Empty means nothing.
	Advice  string `json:"advice,omitempty"`
	Command string `json:"command,omitempty"`
	Runbook string `json:"runbook,omitempty"`
}

// Failing returns the checks that fail: first those that end readiness, then those that users notice.
func (s *Status) Failing() []Check {
	failing := slices.DeleteFunc(slices.Clone(s.Checks), func(c Check) bool { return !c.Failed() })
	slices.SortStableFunc(failing, func(a, b Check) int { return a.rank() - b.rank() })
	return failing
}

// Failed reports whether the check fails.
func (c *Check) Failed() bool { return c.Status == "failed" }

func (c *Check) rank() int {
	switch {
	case c.Gates:
		return 0
	case c.Users != "":
		return 1
	}
	return 2
}

// Served says in one line whether users can be served, and if not, why. It is ok only if this
// replica is ready, no check fails and every APIService is available, serves and is at no limit.
func (s *Status) Served() (line string, ok bool) {
	failing, unavailable, worst := s.Failing(), s.Unavailable(), Check{}
	served := func(a *APIService) bool { return a.StandIn != "" || a.Standby } // none of its requests fails
	away := slices.DeleteFunc(slices.Clone(unavailable), served)
	behind := s.Those(func(a *APIService) bool { return strings.HasPrefix(a.FrontSays, "False") && !a.hidden() })
	ill := s.Those(func(a *APIService) bool { return a.Fails() != "" })
	full := s.Those(func(a *APIService) bool { return len(a.Limits) > 0 && a.Limits[0].Refused >= 6 }) // in two minutes
	if len(failing) > 0 {
		worst = failing[0]
	}
	switch {
	case worst.Gates:
		causes := make([]string, 0, len(failing)) // the others may say why
		for _, c := range failing {
			causes = append(causes, c.Name+": "+c.Message)
		}
		return "This replica takes no requests: " + strings.Join(causes, "; "), false
	case s.Ready != "": // it shuts down
		return "This replica takes no requests: " + s.Ready, false
	case worst.Users != "":
		return worst.Users + ": " + worst.Message, false
	case len(away) == 1:
		return "Users are served, but get 503 from " + away[0].Name, false
	case len(away) > 1:
		return fmt.Sprintf("Users are served, but get 503 from %s and %d more", away[0].Name, len(away)-1), false
	case len(behind) > 0:
		return "Users of the cluster's aggregator get 503 from " + behind[0].Name + ": " + behind[0].FrontSays, false
	case len(ill) > 0:
		return "Users are served, but " + ill[0].Name + ": " + ill[0].Fails(), false
	case len(full) > 0:
		return "Users are served, but " + full[0].Name + ": " + full[0].Limits[0].String(), false
	case worst.Failed():
		return "Users are served, but " + worst.Name + ": " + worst.Message, false
	case len(unavailable) > 0:
		return "Users are served, but " + unavailable[0].Name + " is unavailable", false
	}
	return "Users are served.", true
}
