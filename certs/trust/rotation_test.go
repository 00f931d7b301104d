package trust

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// rotation has two CAs, their servers and an open connection to each.
type rotation struct {
	*bench
	old, next, third *pki.CA
	guards           map[*pki.CA]<-chan struct{}
}

func (r *rotation) open(cas ...*pki.CA) {
	for _, ca := range cas {
		ch, release := r.Guard(apiService, r.spec, good(ca).Chain())
		r.guards[ca] = ch
		r.t.Cleanup(release)
	}
}

// expect dials a server of each CA and checks the open connections.
func (r *rotation) expect(when string, trusted map[*pki.CA]bool) {
	r.t.Helper()
	// Untrusted ones first: a trusted one may end the rotation.
	for _, want := range []bool{false, true} {
		for ca, ok := range trusted {
			if ok != want {
				continue
			}
			if got := reason(r.t, r.dial(good(ca))); (got == "") != ok {
				r.t.Errorf("%s: dialling a server of %s: %q, want trusted %v", when, ca.Certificate.Subject.CommonName, got, ok)
			}
			if g := r.guards[ca]; g != nil && lost(g) == ok {
				r.t.Errorf("%s: open connection to a server of %s: lost %v, want %v", when, ca.Certificate.Subject.CommonName, lost(g), !ok)
			}
		}
	}
}

// pass lets time pass, with the ticks of Run.
func (r *rotation) pass(d time.Duration) {
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		r.tick(time.Now())
	}
}

func TestRotation(t *testing.T) {
	type m = map[*pki.CA]bool
	tests := []struct {
		name string
		run  func(r *rotation)
	}{
		{"old, both, new", func(r *rotation) {
			r.open(r.old)
			r.expect("before", m{r.old: true, r.next: false})
			r.bundle(r.old, r.next)
			r.expect("both", m{r.old: true, r.next: true})
			r.open(r.next)
			r.bundle(r.next)
			r.expect("new only: a CA that was dropped from a bundle goes at once", m{r.old: false, r.next: true})
		}},
		{"bundle first, backend later", func(r *rotation) {
			r.open(r.old)
			r.bundle(r.next)
			r.expect("the old one works on", m{r.old: true})
			r.pass(30 * time.Second)
			r.expect("still", m{r.old: true})
			r.expect("the backend switches", m{r.next: true})
			r.expect("and the old one is over", m{r.old: false, r.next: true})
		}},
		{"bundle first, backend never", func(r *rotation) {
			r.open(r.old)
			r.bundle(r.next)
			r.pass(59 * time.Second)
			r.expect("within the overlap", m{r.old: true})
			r.pass(2 * time.Second)
			r.expect("after it", m{r.old: false, r.next: true})
		}},
		{"backend first, bundle later", func(r *rotation) {
			r.expect("before", m{r.next: false})
			r.bundle(r.next)
			r.expect("healed by the very next handshake", m{r.next: true})
			r.expect("which ended the old one", m{r.old: false})
		}},
		{"no overlap", func(r *rotation) {
			r.overlap = 0
			r.open(r.old)
			r.bundle(r.next)
			r.expect("at once", m{r.old: false, r.next: true})
		}},
		{"overlaps turned off during one", func(r *rotation) {
			r.open(r.old)
			r.bundle(r.next)
			r.overlap = 0
			r.bundle(r.next, r.third)
			r.expect("at once", m{r.old: false, r.third: true})
		}},
		{"replaced again and again", func(r *rotation) {
			r.open(r.old)
			for range maxPrevious {
				r.bundle(pki.NewCA("another"))
			}
			r.expect("so many are kept", m{r.old: true})
			r.bundle(r.next)
			r.expect("and no more", m{r.old: false, r.next: true})
		}},
		{"a fault keeps the last good one for the overlap", func(r *rotation) {
			r.open(r.old)
			r.set(func(s *registry.Backend) { s.CABundle = "garbage" })
			r.pass(59 * time.Second)
			r.expect("within", m{r.old: true, r.next: false})
			r.pass(2 * time.Second)
			r.expect("after", m{r.old: false})
			if _, err := r.TLS(apiService, r.spec); reason(r.t, err) != "InvalidCABundle" {
				r.t.Errorf("TLS: %v, want InvalidCABundle", err)
			}
			r.bundle(r.old)
			r.open(r.old)
			r.expect("repaired", m{r.old: true})
		}},
		{"a fault without overlap", func(r *rotation) {
			r.overlap = 0
			r.open(r.old)
			r.set(func(s *registry.Backend) { s.CABundle = "garbage" })
			if !lost(r.guards[r.old]) {
				r.t.Error("an open connection outlived its bundle")
			}
		}},
		{"a repaired fault that drops a CA drops it at once", func(r *rotation) {
			r.bundle(r.old, r.next)
			r.open(r.old)
			r.set(func(s *registry.Backend) { s.CABundle = "garbage" })
			r.expect("fault", m{r.old: true, r.next: true})
			r.bundle(r.next)
			r.expect("repaired", m{r.old: false, r.next: true})
		}},
		{"replaced twice", func(r *rotation) {
			r.open(r.old)
			r.bundle(r.next)
			r.pass(10 * time.Second)
			r.bundle(r.third)
			r.pass(20 * time.Second)
			r.expect("all three work", m{r.old: true})
			r.pass(31 * time.Second)
			r.expect("the first is over", m{r.old: false, r.next: true})
			r.expect("the last ends the second", m{r.third: true})
			r.expect("so", m{r.next: false})
		}},
		{"there and back", func(r *rotation) {
			r.open(r.old)
			r.bundle(r.next)
			r.bundle(r.old)
			r.expect("nothing happened", m{r.old: true})
			r.expect("but the other one is over", m{r.next: false})
		}},
		{"an edit during an overlap reaches the replaced roots", func(r *rotation) {
			r.bundle(r.old, r.third)
			r.open(r.third)
			r.bundle(r.next)          // replaces both
			r.bundle(r.next, r.third) // third is restored
			r.expect("all", m{r.old: true})
			r.bundle(r.next) // and removed
			r.expect("third was dropped on purpose", m{r.third: false})
			r.expect("old was replaced", m{r.old: true})
		}},
		{"leaving insecure does not overlap", func(r *rotation) {
			r.set(func(s *registry.Backend) { s.Insecure, s.CABundle = true, "" })
			r.open(r.old)
			r.expect("anything goes", m{r.old: true, r.third: true})
			r.set(func(s *registry.Backend) { s.Insecure, s.CABundle = false, string(r.next.PEM()) })
			r.expect("at once", m{r.old: false, r.next: true})
		}},
		{"another name", func(r *rotation) {
			r.open(r.old)
			r.set(func(s *registry.Backend) { s.ServerName = "other.svc" })
			r.expect("the name is verified on open connections too", m{r.old: false})
		}},
		{"from the system's roots to a bundle and back", func(r *rotation) {
			r.set(func(s *registry.Backend) { s.CABundle = "" })
			r.expect("overlap", m{r.old: true})
			r.bundle(r.next)
			r.expect("new", m{r.next: true})
			r.expect("settled", m{r.old: false})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rotation{bench: newBench(t, Config{}), old: pki.NewCA("old"), next: pki.NewCA("new"), third: pki.NewCA("third"), guards: map[*pki.CA]<-chan struct{}{}}
				r.bundle(r.old)
				tt.run(r)
			})
		})
	}
}

// The trust at the end of a handshake decides. It may differ from that at its beginning, if the
// bundle was replaced meanwhile.
func TestReplacedDuringAHandshake(t *testing.T) {
	for _, tc := range []struct {
		name    string
		overlap time.Duration
		want    string
	}{
		{"without overlap", 0, "UnknownAuthority"},
		{"with overlap, which goes on", time.Minute, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b, old, next := newBench(t, Config{}), pki.NewCA("old"), pki.NewCA("new")
			b.overlap = tc.overlap
			b.bundle(old)
			var replace sync.Once
			pool := x509.NewCertPool()
			pool.AddCertWithConstraint(old.Certificate, func([]*x509.Certificate) error {
				replace.Do(func() { b.bundle(next) })
				return nil
			})
			b.backends[apiService].current.Load().current.pool = pool
			for _, when := range []string{"during", "after"} {
				b.wants(when, good(old), tc.want)
			}
		})
	}
}

// The chain of an open connection expires at its earliest NotAfter.
func TestChainExpires(t *testing.T) {
	for name, issue := range map[string]func(ca *pki.CA, end time.Time) *pki.Pair{
		"leaf": func(ca *pki.CA, end time.Time) *pki.Pair {
			return ca.Issue(pki.Leaf{Names: []string{serverName}, NotAfter: end})
		},
		"intermediate": func(ca *pki.CA, end time.Time) *pki.Pair { return good(ca.IntermediateUntil("middle", end)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &rotation{bench: newBench(t, Config{}), old: pki.NewCA("old"), guards: map[*pki.CA]<-chan struct{}{}}
			r.bundle(r.old)
			r.pass(time.Second) // the next look at all is in a minute
			open, release := r.Guard(apiService, r.spec, issue(r.old, time.Now().Add(30*time.Second)).Chain())
			r.open(r.old) // expires later
			r.pass(29 * time.Second)
			if lost(open) {
				t.Errorf("%s: lost before it expired", name)
			}
			r.pass(2 * time.Second)
			if !lost(open) {
				t.Errorf("%s: still trusted a second after it expired", name)
			}
			release()
			release()
		})
	}
}

// An overlap begins and ends once, on time, in the log and in the status.
func TestOverlapIsSeen(t *testing.T) {
	const loaded, needed, over = "bundle loaded", "backend still needs the replaced bundle", "replaced bundle no longer trusted"
	for _, overlap := range []time.Duration{30 * time.Second, 90 * time.Second} { // until before and after the next look at all
		for _, follows := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				r := &rotation{bench: newBench(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}), old: pki.NewCA("old"), next: pki.NewCA("new")}
				r.overlap = overlap
				expect := func(when string, inForce bool, lines ...string) {
					t.Helper()
					if got := r.Status()[1].OverlapInForce; got != inForce || strings.Count(log.String(), "\n") != len(lines) {
						t.Errorf("overlap %s, %s: in force %v, log\n%s", overlap, when, got, &log)
					}
					for _, line := range lines {
						if strings.Count(log.String(), line) != 1 {
							t.Errorf("overlap %s, %s: want %q once in\n%s", overlap, when, line, &log)
						}
					}
					log.Reset()
				}
				r.bundle(r.old)
				r.pass(time.Second)
				expect("before", false, loaded)
				r.bundle(r.next)
				r.wants("old", good(r.old), "")
				r.wants("old again", good(r.old), "")
				expect("begun", true, loaded, needed)
				if follows {
					r.wants("new", good(r.next), "")
					r.wants("new again", good(r.next), "")
					expect("followed", false, over)
				}
				r.pass(overlap - time.Second)
				expect("not yet over", !follows)
				r.pass(time.Second)
				if follows {
					expect("was over", false)
				} else {
					expect("over", false, over)
				}
				r.pass(2 * forgetEvery)
				expect("long over", false)
			})
		}
	}
}

// An unverified backend needs no replaced roots.
func TestInsecureNeedsNoOverlap(t *testing.T) {
	b := newBench(t, Config{})
	b.set(func(s *registry.Backend) { s.Insecure = true })
	b.wants("anything goes", good(pki.NewCA("any")), "")
	if s := b.Status()[1]; s.OverlapInForce || s.Source != "none" || s.Changed.IsZero() {
		t.Errorf("without verification: %+v", s)
	}
	check.Same(t, serverName, must.Get(b.TLS(apiService, b.spec))(t).ServerName, "the name that is sent")
	b.wants("SHA-1", pki.NewCA("any").Issue(pki.Leaf{SHA1: true}), "")
	check.Same(t, 1, testutil.ToFloat64(b.hooks.sha1), "chains with a SHA-1 signature")
	b.set(func(s *registry.Backend) { s.Insecure = false })
	check.Same(t, "system", b.Status()[1].Source, "source with verification")
}

// A view has roots, a fault, or no verification. One that had none of them must accept nobody.
func TestNothingToVerifyBy(t *testing.T) {
	if _, _, err := new(view).verify(good(pki.NewCA("any")).Chain(), time.Now()); err == nil {
		t.Error("a chain is accepted without roots")
	}
}

// The status lists each CA of a bundle once, and a leaf until leafMemory after it was last
// presented.
func TestLeavesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("ca")
		b := newBench(t, Config{})
		b.bundle(ca, ca)
		b.wants("good", good(ca.Intermediate("middle")), "")
		for _, tc := range []struct {
			after  time.Duration
			leaves int
		}{{leafMemory, 1}, {1, 0}} {
			time.Sleep(tc.after)
			for _, one := range b.both() {
				one.tick(time.Now())
			}
			if s := b.Status()[1]; len(s.CAs) != 1 || len(s.Leaves) != tc.leaves {
				t.Errorf("%s later: %d CAs, %d leaves, want 1 and %d", tc.after, len(s.CAs), len(s.Leaves), tc.leaves)
			}
		}
	})
}

// Status and metrics are bounded, and have first what expires first. The leaves that were presented
// last stay.
func TestStatusIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.NewPedanticRegistry()
		b := newBench(t, Config{Metrics: metrics})
		root, end := pki.NewCA("root"), func(i int) time.Time { return time.Now().Add(time.Duration(100-i/2) * time.Hour) } // two at a time
		var cas []*pki.CA
		for i := range maxSeries + 2 {
			cas = append(cas, root.IntermediateUntil(fmt.Sprint(i), end(i)))
		}
		b.bundle(cas...)
		for i := range maxLeaves + 2 {
			time.Sleep(time.Nanosecond)
			b.wants("a leaf", cas[0].Issue(pki.Leaf{CommonName: fmt.Sprint(i), Names: []string{serverName}, NotAfter: end(i)}), "")
		}
		s := b.Status()[1]
		for name, list := range map[string][]Certificate{"CAs": s.CAs, "leaves": s.Leaves} {
			if !slices.IsSortedFunc(list, func(a, b Certificate) int {
				return cmp.Or(a.NotAfter.Compare(b.NotAfter), cmp.Compare(a.Fingerprint, b.Fingerprint))
			}) {
				t.Errorf("%s are not sorted: %+v", name, list)
			}
		}
		if old := slices.ContainsFunc(s.Leaves, func(c Certificate) bool { return c.Subject == "0" || c.Subject == "1" }); old || len(s.Leaves) != maxLeaves {
			t.Errorf("%d leaves, the first two %v", len(s.Leaves), old)
		}
		shown := 0
		for name := range gather(t, metrics) {
			if of, subject, ca := strings.Cut(name, " ca "); ca && strings.HasSuffix(of, apiService) {
				if shown++; subject == "0" || subject == "1" {
					t.Errorf("%s is shown, which expires last", name)
				}
			}
		}
		check.Same(t, maxSeries, shown, "series of CAs")
	})
}

func TestRotationIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.NewPedanticRegistry()
		b := newBench(t, Config{Metrics: metrics})
		if _, err := New(Config{Metrics: metrics}); err == nil {
			t.Error("two Trusts registered the same metrics")
		}
		r := &rotation{bench: b, old: pki.NewCA("old"), next: pki.NewCA("new")}
		r.bundle(r.old)
		r.dial(good(r.old))
		if s := r.Status()[1]; !s.CAs[0].Live || len(s.Leaves) != 1 || s.Source != "inline" || s.OverlapInForce {
			t.Errorf("before: %+v", s)
		}
		r.bundle(r.next)
		if s := r.Status()[1]; s.CAs[0].Live || s.OverlapInForce || s.OverlapUntil != time.Now().Add(time.Minute) {
			t.Errorf("replaced: %+v", s)
		}
		r.dial(good(r.old))
		r.dial(good(pki.NewCA("stranger")))
		if s, fault := r.Status()[1], r.Faults()[apiService]; !s.OverlapInForce || !strings.HasSuffix(fault, "it is trusted until 2000-01-01T00:01:00Z") {
			t.Errorf("in force: %q, %+v", fault, s)
		}
		got := gather(t, metrics)
		for name, want := range map[string]float64{
			"fairlead_certificate_backend_overlap v1beta1.metrics.k8s.io":                                   1,
			"fairlead_certificate_backend_bundle_valid v1beta1.metrics.k8s.io":                              1,
			"fairlead_certificate_backend_expiration_timestamp_seconds v1beta1.metrics.k8s.io ca new":       float64(r.next.Certificate.NotAfter.Unix()),
			"fairlead_certificate_backend_expiration_timestamp_seconds v1beta1.metrics.k8s.io leaf metrics": float64(time.Now().Add(24 * time.Hour).Unix()),
			"fairlead_certificate_backend_refused_total v1beta1.metrics.k8s.io UnknownAuthority":            1,
			"fairlead_certificate_backend_bundle_reloads_total v1beta1.metrics.k8s.io success":              2,
			"fairlead_certificate_backend_bundle_change_timestamp_seconds v1beta1.metrics.k8s.io":           float64(time.Now().Unix()),
			"apiserver_kube_aggregator_x509_missing_san_total":                                              0,
			"apiserver_kube_aggregator_x509_insecure_sha1_total":                                            0,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s = %v (%v), want %v", name, v, ok, want)
			}
		}
		r.dial(r.next.Issue(pki.Leaf{CommonName: serverName}))
		r.dial(r.next.Issue(pki.Leaf{Names: []string{serverName}, SHA1: true}))
		r.set(func(s *registry.Backend) { s.CABundle += "-----BEGIN CERTIFICATE-----" })
		if s := r.Status()[1]; s.Fault != "" || s.OverlapInForce || !strings.Contains(s.Warning, "1 of 2 certificates are broken") {
			t.Errorf("a bundle that is readable in part: %+v", s)
		}
		r.set(func(s *registry.Backend) { s.CABundle = "garbage" })
		got = gather(t, metrics)
		check.Same(t, 1, got["fairlead_certificate_backend_bundle_reloads_total v1beta1.metrics.k8s.io failure"], "unreadable bundles")
		if got["apiserver_kube_aggregator_x509_missing_san_total"] != 1 || got["apiserver_kube_aggregator_x509_insecure_sha1_total"] != 1 {
			t.Errorf("upstream's counters: %v", got)
		}
		if s, fault := r.Status()[1], r.Faults()[apiService]; s.Fault == "" || s.OverlapUntil.IsZero() || fault != "the CA bundle is not used: "+s.Fault {
			t.Errorf("a bad bundle: %q, %+v", fault, s)
		}
		r.apply(r.generation+1, nil)
		for name := range gather(t, metrics) {
			if strings.Contains(name, "v1beta1.metrics.k8s.io") {
				t.Errorf("series %q outlived its APIService", name)
			}
		}
	})
}
