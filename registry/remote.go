package registry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// remote fills an entry that has a backend: its trust, endpoints and verdict.
func (b *builder) remote(e *Entry, s *annotated, old *Entry) {
	e.Backend = b.backend(e, s, old)
	up := old != nil && old.Verdict.Available() // be it as another server's or Local
	if old != nil && (old.Backend == nil || !old.Backend.SameService(e.Backend)) {
		old = nil // what is known of it is about another server
	}
	name := serviceOf(e.Object)
	r := resolver{
		options: b.options, ref: behind.Server(e.Object), port: e.Backend.Port,
		service: b.in.Services[name], slices: b.in.Slices[name],
	}
	if r.service == nil && len(r.slices) == 0 {
		// Both from one source: a writer of the other one must not be able to add an address.
		r.service, r.slices = b.in.FallbackServices[name], b.in.FallbackSlices[name]
	}
	why := b.front(e, s.urls.given())
	switch {
	case why.Reason != "":
	case s.urls.given():
		why = r.fromURLs(&s.urls)
	default:
		why = r.resolve()
	}
	e.Endpoints = r.endpoints
	if s.urls.fault != "" {
		e.Problems = append(e.Problems, why.Message)
	}
	for _, refused := range r.refused {
		e.Problems = append(e.Problems, "endpoint refused: "+refused)
	}
	if r.unused > 0 {
		e.Problems = append(e.Problems,
			fmt.Sprintf("its Service has more than %d endpoints: the others are not used", maxEndpoints))
	}
	if e.kept.ca != nil && e.kept.ca.problem != "" {
		e.Problems = append(e.Problems, "caBundle: "+e.kept.ca.problem)
	}
	b.carry(e, old)
	b.apply(e)
	e.Verdict = b.verdict(e, why, old, up)
	if strings.HasPrefix(e.FrontSays, string(corev1.ConditionFalse)) && e.Verdict.Status != corev1.ConditionFalse {
		e.Problems = append(e.Problems,
			"the cluster sends it to service "+e.Front+", and its own condition says: "+e.FrontSays)
	}
}

// carry copies the health of the endpoints that remain, even for a new Backend if the Service is
// the same: the rotation of a CA is no reason to answer 503 until the next probe has ended.
func (b *builder) carry(e, old *Entry) {
	if old == nil {
		return
	}
	at := byAddress(old.Endpoints)
	for i := range e.Endpoints {
		to := &e.Endpoints[i]
		was := at[to.Address]
		if was == nil || was.Health == Unhealthy && !old.Backend.trustsLike(e.Backend, to.Address) {
			continue // it is new, or was judged by another trust, which may have been the cause
		}
		kept := *was
		kept.Terminating, kept.Far = to.Terminating, to.Far
		*to = kept
	}
}

func byAddress(list []Endpoint) map[string]*Endpoint {
	places := make(map[string]*Endpoint, len(list))
	for i := range list {
		places[list[i].Address] = &list[i]
	}
	return places
}

// trustsLike reports whether both expect the same certificate of an address, in the same protocol.
func (b *Backend) trustsLike(o *Backend, address string) bool {
	return b.CABundle == o.CABundle && b.CAFrom == o.CAFrom && b.NameAt(address) == o.NameAt(address) &&
		b.Insecure == o.Insecure && b.HTTP1 == o.HTTP1
}

// apply applies the new reports, in order of arrival.
func (b *builder) apply(e *Entry) {
	reports := b.reports[e.Name]
	if len(reports) == 0 {
		return
	}
	at := byAddress(e.Endpoints)
	for _, r := range reports {
		to := at[r.Address]
		if to == nil || r.Backend != e.Backend || r.Health == Unprobed {
			continue
		}
		if to.Health != r.Health {
			to.Health, to.Since = r.Health, b.in.Now
		}
		to.Slow, to.Hung, to.Gone, to.Reason, to.Message = r.Slow, r.Hung, r.Gone, "", ""
		if r.Health == Unhealthy {
			to.Reason, to.Message = ReasonFailedDiscoveryCheck, printable.Cause(r.Message)
			if r.Reason == ReasonInvalidCABundle { // one of two: metrics have a series for each
				to.Reason = r.Reason
			}
		}
	}
}

// verdict makes the Available condition from everything. Maintenance, the operator's, is first.
func (b *builder) verdict(e *Entry, static Verdict, old *Entry, up bool) Verdict {
	switch {
	case e.Settings.Maintenance != "":
		return fault(ReasonMaintenance, "%s", e.Settings.Maintenance)
	// While it has been available until now, a newly unreadable bundle does not decide: the last valid one is trusted
	// for the overlap of a rotation, and after that probes fail with InvalidCABundle.
	case e.kept.ca != nil && e.kept.ca.unusable && (old == nil || !old.Verdict.Available()):
		return fault(ReasonInvalidCABundle, "caBundle: %s", e.kept.ca.problem)
	case e.Backend.CAFrom != "" && (e.kept.ca != nil || e.Backend.Insecure):
		message := "annotation " + prefix + "ca-from and spec.caBundle exclude each other"
		if e.Backend.Insecure {
			message = "annotation " + prefix + "ca-from and spec.insecureSkipTLSVerify exclude each other"
		}
		e.Problems = append(e.Problems, message)
		return fault(ReasonInvalidCABundle, "%s", message)
	case static.Reason != "":
		return static
	}
	return probed(e, old, up)
}

// probed returns the verdict of the probes: available while one endpoint is healthy, unavailable
// when all are unhealthy. In between, when endpoints are new (a rollout replaces all of them at
// once), the last verdict of the probes stays: it changes only with a failed or a successful probe.
func probed(e, old *Entry, up bool) Verdict {
	var some [Unhealthy + 1]bool
	for i := range e.Endpoints {
		some[e.Endpoints[i].Health] = true
	}
	switch {
	// Another server, too, stays available: kube-aggregator proxies to it at once, by the condition of the former.
	case some[Healthy], some[Unprobed] && up:
		return Verdict{Status: corev1.ConditionTrue, Reason: ReasonPassed, Message: "all checks passed"}
	case some[Unhealthy] && !some[Unprobed]:
		return failed(e)
	case old != nil && old.Verdict.Reason == ReasonFailedDiscoveryCheck &&
		(len(old.Endpoints) == 0 || old.Backend.trustsLike(e.Backend, old.Endpoints[0].Address)):
		return old.Verdict
	}
	return Verdict{}
}

// failed returns the verdict when every endpoint is unhealthy: the cause of the first one, in upstream's form
// (remote_available_controller.go: "failing or missing response from <url>: <cause>").
func failed(e *Entry) Verdict {
	at := slices.IndexFunc(e.Endpoints, func(o Endpoint) bool { return o.Reason == ReasonFailedDiscoveryCheck })
	if at < 0 {
		return fault(ReasonInvalidCABundle, "%s", e.Endpoints[0].Message)
	}
	first := &e.Endpoints[at]
	message := first.Message
	if !strings.HasPrefix(message, "failing or missing response from ") {
		message = "failing or missing response from https://" + first.Address + e.Path() + ": " + message
	}
	return fault(ReasonFailedDiscoveryCheck, "%s", message)
}

// backend makes the Backend of a remote entry, or returns an equal existing one.
func (b *builder) backend(e *Entry, s *annotated, old *Entry) *Backend {
	fresh, ref := Backend{}, behind.Server(e.Object)
	if s.urls.given() {
		fresh = s.urls.backend()
	} else {
		fresh.Service, fresh.Port = ref.Name, ptr.Deref(ref.Port, defaultPort)
		fresh.ServerName = ref.Name + "." + ref.Namespace + ".svc"
	}
	if ref != nil {
		fresh.Namespace, fresh.CAFrom = ref.Namespace, s.caFrom
	} else if inTrustBundle(s.caFrom) {
		fresh.CAFrom = s.caFrom
	}
	fresh.ServerName = cmp.Or(s.serverName, fresh.ServerName)
	raw, insecure := e.Object.Spec.CABundle, e.Object.Spec.InsecureSkipTLSVerify
	if behind.Format(ref) != behind.Format(e.Object.Spec.Service) { // the spec verifies Fairlead
		raw, insecure = []byte(s.bundle), s.insecure && s.bundle == ""
	}
	fresh.Insecure, fresh.HTTP1, fresh.PingTimeout = insecure, s.http1, e.Settings.PingTimeout
	if e.kept.ca = b.bundle(raw, e.kept.ca); e.kept.ca != nil {
		fresh.CABundle = e.kept.ca.pem
	}
	if old != nil && old.Backend != nil &&
		(old.Backend.CABundle != fresh.CABundle || old.Backend.CAFrom != fresh.CAFrom) {
		e.kept.ownedUntil = b.in.Now.Add(e.Settings.CAOverlap)
	}
	if b.over(e.kept.ownedUntil) {
		e.kept.ownedUntil = time.Time{}
	}
	if fresh.CAFrom != "" || !e.kept.ownedUntil.IsZero() || s.urls.fault != "" {
		fresh.Owner = e.Name
	}
	if old != nil && old.Backend != nil && *old.Backend == fresh {
		return old.Backend
	}
	return b.intern(&fresh)
}

const fewInterned = 4 // how many Backends are searched for linearly before a map is made

// intern returns the equal Backend of this table or of prev, else fresh.
func (b *builder) intern(fresh *Backend) *Backend {
	equal := func(o *Backend) bool { return o.Service == fresh.Service && *o == *fresh }
	if b.interned++; b.interned <= fewInterned {
		for _, e := range b.prev.servers {
			if e.Backend != nil && equal(e.Backend) {
				return e.Backend
			}
		}
		if at := slices.IndexFunc(b.made, equal); at >= 0 {
			return b.made[at]
		}
		b.made = append(b.made, fresh)
		return fresh
	}
	if b.backends == nil {
		b.backends = make(map[Backend]*Backend, len(b.prev.servers))
		for _, o := range b.made {
			b.backends[*o] = o
		}
		for _, e := range b.prev.servers {
			if e.Backend != nil {
				b.backends[*e.Backend] = e.Backend
			}
		}
	}
	if known := b.backends[*fresh]; known != nil {
		return known
	}
	b.backends[*fresh] = fresh
	return fresh
}

// over reports whether a time has passed, as zero has. If not, the table is rebuilt then.
func (b *builder) over(until time.Time) bool {
	if !b.in.Now.Before(until) {
		return true
	}
	b.rebuildAt = latest.Earlier(b.rebuildAt, until)
	return false
}

// parsedBundle is a parsed caBundle, kept with the entry: parsing costs 20 µs per certificate.
type parsedBundle struct {
	pem      string
	problem  string // what of it is not usable. Empty means nothing
	unusable bool   // nothing of it is usable
}

// bundle returns an APIService's parsed caBundle, nil if it has none. Was is the previous result.
func (b *builder) bundle(raw []byte, was *parsedBundle) *parsedBundle {
	if was != nil && was.pem == string(raw) {
		return was
	}
	if known := b.in.policy.bundles[string(raw)]; known != nil {
		return known
	}
	return b.bundles.parse(raw)
}

// bundles are parsed ones, by their PEM: many APIServices share one.
type bundles map[string]*parsedBundle

// parse returns a bundle, parsed now if it was not yet. Nil means an empty one. It is as lenient as AppendCertsFromPEM,
// as client-go: one valid certificate is enough.
func (b bundles) parse(raw []byte) *parsedBundle {
	if known := b[string(raw)]; known != nil || len(raw) == 0 {
		return known
	}
	parsed := &parsedBundle{pem: string(raw)}
	certs, err := bundle.Parse(raw)
	switch {
	case err == nil:
	case len(certs) == 0:
		parsed.problem, parsed.unusable = err.Error(), true
	default:
		parsed.problem = strings.ReplaceAll(err.Error(), "\n", "; ") + "; the rest is used"
	}
	b[parsed.pem] = parsed
	return parsed
}
