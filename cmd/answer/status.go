package answer

import (
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
)

// Below is the prefix under which the pages are found on the front door.
const Below = "/fairlead"

// Status is this replica as it sees itself: the answer to /status.
type Status struct {
	// Time is when it was made.
	Time time.Time `json:"time"`
	// Version and Go are the build's, Started when the process began to serve.
	Version string    `json:"version"`
	Go      string    `json:"go"`
	Started time.Time `json:"started"`
	// Ready is empty when this replica takes requests; otherwise it says why it does not.
	Ready string `json:"notReady,omitempty"`
	// Generation counts the tables of this process. Complete: every source has been read once.
	Generation uint64 `json:"generation"`
	Complete   bool   `json:"complete"`
	// APIServices are in the order of the legacy discovery document: groupPriorityMinimum, then name.
	APIServices []APIService `json:"apiServices"`
	// LocalServers are the local apiservers. Empty: there is none.
	LocalServers []Endpoint `json:"localAPIServers"`
	// LocalTrust is what they are trusted by. Nil: there is none.
	LocalTrust *trust.Status `json:"localTrust,omitempty"`
	// Certificates are the key pairs and bundles of this process.
	Certificates []certs.Status `json:"certificates"`
	// Problems are faults of the source that belong to no APIService.
	Problems []string `json:"problems,omitempty"`
	// Transitions are the last changes of verdicts, newest first.
	Transitions []Transition `json:"transitions"`
}

// APIService is one entry of the table.
type APIService struct {
	// Name is version.group, as in metadata.name.
	Name string `json:"name"`
	// Group and Version are what it claims.
	Group   string `json:"group"`
	Version string `json:"version"`
	// Kind is local, remote, or refused: a remote that claims a protected group.
	Kind string `json:"kind"`
	// GroupPriority and VersionPriority are groupPriorityMinimum and versionPriority.
	GroupPriority   int32 `json:"groupPriorityMinimum"`
	VersionPriority int32 `json:"versionPriority"`
	// Service is namespace/name:port, or the URLs in its place. Empty: Local.
	Service string `json:"service,omitempty"`
	// ServerName is the TLS name that is sent and verified, or those of several URLs, comma-separated. Empty: Local.
	ServerName string `json:"serverName,omitempty"`
	// Verdict is whether requests are sent there.
	Verdict Verdict `json:"verdict"`
	// Endpoints are the addresses that may be dialled.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// InFlight and LongRunning are the requests under way; the limits are the policy's.
	InFlight       int64 `json:"inFlight"`
	LongRunning    int64 `json:"longRunning"`
	MaxInFlight    int   `json:"maxInFlight,omitempty"`
	MaxLongRunning int   `json:"maxLongRunning,omitempty"`
	// Traffic is how fast it answers. Nil: it had no request lately.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Maintenance is the message of the annotation. Empty: not in maintenance.
	Maintenance string `json:"maintenance,omitempty"`
	// Trust is what the backend is trusted by. Nil: Local.
	Trust *trust.Status `json:"trust,omitempty"`
	// Discovery and OpenAPI are how current its part of the merged documents is. Nil: Local, or the core group.
	Discovery *discovery.Status `json:"discovery,omitempty"`
	OpenAPI   *openapi.Status   `json:"openapi,omitempty"`
	// Problems are faults of the object that are worked around.
	Problems []string `json:"problems,omitempty"`
}

// Verdict is whether an APIService can be used, in the words of its Available condition.
type Verdict struct {
	// Status is True, False or Unknown.
	Status string `json:"status"`
	// Reason and Message are empty until the first check has ended.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when Status last changed. Zero: never.
	Since time.Time `json:"since,omitzero"`
}

// Endpoint is one address of a backend or of the local apiserver.
type Endpoint struct {
	// Address is host:port.
	Address string `json:"address"`
	// Health is unprobed, healthy or unhealthy.
	Health string `json:"health"`
	// Since is when Health last changed. Zero: never.
	Since time.Time `json:"since,omitzero"`
	// Slow endpoints get a trickle, Terminating ones nothing while there are others.
	Slow        bool `json:"slow,omitempty"`
	Terminating bool `json:"terminating,omitempty"`
	// Reason and Error say why it is unhealthy.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// InFlight is how many requests it is serving, long-running ones included.
	InFlight int64 `json:"inFlight"`
}

// Traffic is how fast an APIService's requests are answered, watches and the like aside.
type Traffic struct {
	// Rate is requests per second, P50 and P99 are seconds from a request's arrival to its last byte, all of the last minute. Zero: there were none.
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	// Points are the 99th percentiles of the last ten minutes, one for every ten seconds, oldest first, in seconds. Zero: there was no request.
	Points []float64 `json:"points"`
}

// Transition is one change of an APIService's verdict.
type Transition struct {
	// Time is when it was seen.
	Time time.Time `json:"time"`
	// APIService is its name.
	APIService string `json:"apiService"`
	// Status and Reason are the new verdict's; "gone" is the status of an APIService that was deleted.
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	// Message is the new verdict's.
	Message string `json:"message,omitempty"`
}

// Available reports whether requests are sent to the APIService.
func (a *APIService) Available() bool { return a.Verdict.Status == "True" && a.Maintenance == "" }

// Path is where its discovery document is.
func (a *APIService) Path() string {
	if a.Group == "" {
		return "/api/" + a.Version
	}
	return "/apis/" + a.Group + "/" + a.Version
}

// Healthy counts the endpoints that are healthy.
func (a *APIService) Healthy() int {
	n := 0
	for i := range a.Endpoints {
		if a.Endpoints[i].Health == "healthy" {
			n++
		}
	}
	return n
}

// Expires is when the backend can no longer be verified: when the first certificate that it presents or that vouches for one runs out, or, when none was seen lately, when the
// last of the bundle does. Zero: none is known.
func (a *APIService) Expires() time.Time {
	var first, last time.Time
	if a.Trust == nil {
		return first
	}
	earlier := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for _, c := range a.Trust.Leaves {
		earlier(c.NotAfter)
	}
	for _, c := range a.Trust.CAs {
		if c.Live {
			earlier(c.NotAfter)
		}
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	if first.IsZero() {
		return last
	}
	return first
}
