package answer

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestExpires(t *testing.T) {
	in := func(days int) time.Time { return time.Date(2026, 3, days, 0, 0, 0, 0, time.UTC) }
	cert := func(days int, live bool) trust.Certificate { return trust.Certificate{NotAfter: in(days), Live: live} }
	for _, c := range []struct {
		name  string
		trust *trust.Status
		want  time.Time
	}{
		{"local", nil, time.Time{}},
		{"nothing known", &trust.Status{}, time.Time{}},
		{"a leaf first", &trust.Status{Leaves: []trust.Certificate{cert(9, false), cert(5, false)}, CAs: []trust.Certificate{cert(20, true)}}, in(5)},
		{"its CA first", &trust.Status{Leaves: []trust.Certificate{cert(9, false)}, CAs: []trust.Certificate{cert(4, true)}}, in(4)},
		{"an old CA that nobody needs", &trust.Status{Leaves: []trust.Certificate{cert(9, false)}, CAs: []trust.Certificate{cert(1, false), cert(20, true)}}, in(9)},
		{"no leaf seen", &trust.Status{CAs: []trust.Certificate{cert(1, false), cert(20, false)}}, in(20)},
	} {
		check.Same(t, c.want, (&APIService{Trust: c.trust}).Expires(), "%s", c.name)
	}
}

func TestUnits(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	left := func(d time.Duration) string { return Left(now, now.Add(d)) + " " + Urgency(now, now.Add(d)) }
	const day = 24 * time.Hour
	for _, c := range []struct{ got, want string }{
		{Left(now, time.Time{}) + " " + Urgency(now, time.Time{}), "– dim"},
		{left(-time.Second), "expired bad"},
		{left(0), "expired bad"},
		{left(59 * time.Minute), "0h bad"},
		{left(day - time.Minute), "23h bad"},
		{left(day), "1d warn"},
		{left(7*day - time.Second), "6d warn"},
		{left(7 * day), "7d dim"},
		{left(400*day + time.Hour), "400d dim"},
		{Ago(now, time.Time{}), "-"},
		{Ago(now, now.Add(time.Second)), "0s"}, // clocks differ
		{Ago(now, now.Add(-90*time.Second)), "90s"},
		{Ago(now, now.Add(-76*time.Hour)), "3d4h"},
		{Latency(0), "-"},
		{Latency(.00123), "1.2ms"},
		{Latency(.0123), "12ms"},
		{Latency(1.23), "1.2s"},
		{Rate(0), "-"},
		{Rate(.001), "<0.01/s"},
		{Rate(.0333), "0.03/s"},
		{Rate(2.5), "2.5/s"},
		{Rate(1230), "1230/s"},
	} {
		check.Same(t, c.want, c.got, "text")
	}
}

// What hurts most users comes first, and nothing that hurts somebody is called served.
func TestServed(t *testing.T) {
	up := APIService{Name: "v1.up", Verdict: registry.Verdict{Status: "True"}}
	down, closed := APIService{Name: "v1.down"}, APIService{Name: "v1.closed", Verdict: up.Verdict, Maintenance: "moving"}
	saved, spare := APIService{Name: "v1.saved", StandIn: "v1.up/spare"}, APIService{Name: "v1.up/spare", BackendOf: "v1.up", Rule: "p:1", Standby: true}
	ill := APIService{Name: "v1.ill", Verdict: up.Verdict, Traffic: &Traffic{Rate: 10, Errors: .5}}
	unread := APIService{Name: "v1.unread", Verdict: up.Verdict, Discovery: &discovery.Status{Stale: true}}
	fresh := APIService{Name: "v1.new", Verdict: up.Verdict, Discovery: &discovery.Status{Stale: true, Freshness: documents.Freshness{Reason: "pending"}}}
	unmet, moved := APIService{Name: "v1.unmet", Verdict: up.Verdict, FrontSays: "False, FailedDiscoveryCheck: no route"}, APIService{Verdict: up.Verdict, FrontSays: "True, Passed: "}
	at := func(refused int64) APIService {
		return APIService{Name: "v1.full", Verdict: up.Verdict, Limits: []bound.Limit{{Name: "inflight", Refused: refused}}}
	}
	hidden, further := APIService{Name: "v1.hidden", Rule: "p:3"}, APIService{Name: "v1.up/further", BackendOf: "v1.up", Rule: "p:2"}
	gate, noticed, other := Check{"table", "failed", time.Time{}, "not read", "", true, "", "", ""}, Check{Name: "rights", Status: "failed", Message: "none", Users: "Users get 503"}, Check{Name: "clock", Status: "failed", Message: "late"}
	for _, c := range []struct {
		status Status
		want   string
	}{
		{Status{APIServices: []APIService{up}}, "Users are served."},
		{Status{Checks: []Check{other}, APIServices: []APIService{up}}, "Users are served, but clock: late"},
		{Status{Checks: []Check{other}, APIServices: []APIService{up, down}}, "Users are served, but get 503 from v1.down"},
		{Status{APIServices: []APIService{closed, up, down, down}}, "Users are served, but get 503 from v1.closed and 2 more"},
		{Status{APIServices: []APIService{hidden, up}}, "Users are served."},
		{Status{APIServices: []APIService{up, ill}}, "Users are served, but v1.ill: 5% of its requests in the last minute failed (0.5/s)"},
		{Status{APIServices: []APIService{fresh, unread}}, "Users are served, but v1.unread: it is listed as stale, so that no namespace can be deleted"},
		{Status{APIServices: []APIService{at(5)}}, "Users are served."},
		{Status{APIServices: []APIService{at(6)}}, "Users are served, but v1.full: limit inflight; 6 requests got 429 in the last two minutes"},
		{Status{APIServices: []APIService{at(6), ill}}, "Users are served, but v1.ill: 5% of its requests in the last minute failed (0.5/s)"},
		{Status{APIServices: []APIService{ill, unmet}}, "Users of the cluster's aggregator get 503 from v1.unmet: False, FailedDiscoveryCheck: no route"},
		{Status{APIServices: []APIService{moved, {Verdict: up.Verdict, FrontSays: unmet.FrontSays, Rule: "p:3"}}}, "Users are served."},
		{Status{APIServices: []APIService{ill, down}}, "Users are served, but get 503 from v1.down"},
		{Status{APIServices: []APIService{saved, up}}, "Users are served, but v1.saved is unavailable"},
		{Status{APIServices: []APIService{up, spare}}, "Users are served, but v1.up/spare is unavailable"},
		{Status{APIServices: []APIService{saved, further}}, "Users are served, but get 503 from v1.up/further"},
		{Status{Checks: []Check{other, noticed}, APIServices: []APIService{down}}, "Users get 503: none"},
		{Status{Checks: []Check{noticed}, Ready: "shutting down"}, "This replica takes no requests: shutting down"},
		{Status{Checks: []Check{noticed, gate}, Ready: "table: not read"}, "This replica takes no requests: table: not read; rights: none"},
	} {
		line, ok := c.status.Served()
		check.Same(t, c.want, line, "line")
		check.Same(t, c.want == "Users are served.", ok, "%s: ok", line)
	}
}

// An outage that no probe sees is told by what requests get: three in a minute, and one of twenty.
func TestFails(t *testing.T) {
	good := registry.Verdict{Status: "True"}
	for _, c := range []struct {
		a    APIService
		want string
	}{
		{APIService{Verdict: good}, ""},
		{APIService{Verdict: good, Traffic: &Traffic{Rate: 100, Errors: 4.9}}, ""},
		{APIService{Verdict: good, Traffic: &Traffic{Rate: .034, Errors: .033}}, ""}, // two
		{APIService{Verdict: good, Traffic: &Traffic{Errors: .05}}, "100% of its requests in the last minute failed (0.05/s)"},
		{APIService{Traffic: &Traffic{Rate: 1, Errors: 1}}, ""}, // unavailable, which says more
	} {
		check.Same(t, c.want, c.a.Fails(), "%+v", c.a.Traffic)
	}
}

// An overlap of CAs that the backend needs, or what is not read, is what is wrong with an APIService, unless something
// else is.
func TestSetTrust(t *testing.T) {
	needed := &trust.Status{OverlapInForce: true, OverlapUntil: time.Date(2026, 11, 28, 23, 33, 40, 0, time.FixedZone("", 3600))}
	good := registry.Verdict{Status: "True"}
	for _, tc := range []struct {
		a     APIService
		t     *trust.Status
		cause string
	}{
		{APIService{Verdict: good}, needed, "available until 22:33:40 UTC only: the backend presents a certificate that only the replaced CA verifies"},
		{APIService{Verdict: good}, &trust.Status{OverlapUntil: needed.OverlapUntil}, ""},
		{APIService{Verdict: good}, &trust.Status{OverlapInForce: true, OverlapUntil: needed.OverlapUntil, Fault: "it is cut"}, "available until 22:33:40 UTC only: it is cut"},
		{APIService{Verdict: good}, &trust.Status{Warning: "one is broken\none is cut"}, "a part of its CA bundle is ignored: one is broken; one is cut"},
		{APIService{Verdict: good}, &trust.Status{Fault: "not read yet"}, ""}, // and no longer trusted: the verdict will say so
		{APIService{Verdict: good, Cause: "1 of 2"}, needed, "1 of 2"},
		{APIService{}, needed, ""},
	} {
		tc.a.SetTrust(tc.t)
		check.Same(t, tc.cause, tc.a.Cause, "cause of %+v", tc.a)
		check.Same(t, tc.t, tc.a.Trust, "trust")
		check.Same(t, strings.HasPrefix(tc.cause, "a"), tc.a.Advice != "", "advice")
	}
}
