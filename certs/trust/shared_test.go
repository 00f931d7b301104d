package trust

import (
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
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

// All users of a Backend share the trust in its bundle, even when they no longer use it. They do
// not share what one APIService trusts in addition.
func TestSharedTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, next := pki.NewCA("old"), pki.NewCA("next")
		reg := prometheus.NewRegistry()
		w := newBench(t, Config{Metrics: reg})
		dial := func(b *registry.Backend, pair *pki.Pair) string {
			t.Helper()
			cfg, err := w.TLS("", b)
			if err != nil {
				return reason(t, err)
			}
			return reason(t, shake(t, cfg, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}))
		}
		tick := func(d time.Duration) {
			time.Sleep(d)
			w.tick(time.Now())
		}
		w.bundle(old)
		before := w.spec
		if w.all()[0].current.Load().current != slices.Collect(maps.Values(w.shared))[0].current.Load().current {
			t.Error("one bundle was read twice")
		}
		soon := old.Issue(pki.Leaf{CommonName: "soon", Names: []string{serverName}, NotAfter: time.Now().Add(time.Hour)})
		open, release := w.Guard("", before, soon.Chain())
		if other, _ := w.Guard("", before, good(next).Chain()); lost(open) || !lost(other) {
			t.Errorf("at once: its own lost %v, another's lost %v", lost(open), lost(other))
		}
		// For a minute the APIService trusts both bundles. A handshake for all users of the next
		// Backend trusts only the new one.
		w.bundle(next)
		w.wants("in its overlap", good(old), "")
		check.Same(t, "UnknownAuthority", dial(w.spec, good(old)), "its replaced CA, for all users")
		check.Same(t, "", dial(w.spec, good(next)), "its bundle, for all users")
		// The previous users of the Backend may still have watches on its connections, and end them
		// themselves.
		tick(59 * time.Minute)
		w.apply(w.generation+1, nil)
		if lost(open) {
			t.Error("lost when the APIServices were deleted")
		}
		tick(2 * time.Minute)
		if !lost(open) {
			t.Error("kept after its certificate expired")
		}
		release()
		w.apply(w.generation+2, nil)
		if len(w.shared) != 0 || dial(before, good(old)) != "InvalidCABundle" {
			t.Errorf("the trust of %d unused Backends is left", len(w.shared))
		}
		check.Same(t, 0, testutil.CollectAndCount(w.hooks.refusals)+testutil.CollectAndCount(w.hooks.reloads), "series left")
	})
}

// A Backend with an Owner is trusted only for its Owner, and an unreadable bundle verifies nothing.
func TestOwnedTrustIsNotShared(t *testing.T) {
	ca := pki.NewCA("ca")
	w := newBench(t, Config{})
	w.set(func(s *registry.Backend) { s.CABundle, s.Owner = string(ca.PEM()), apiService })
	if _, err := w.TLS("", w.spec); reason(t, err) != "InvalidCABundle" {
		t.Errorf("for all users: %v", err)
	}
	if open, _ := w.Guard("", w.spec, good(ca).Chain()); !lost(open) {
		t.Error("a connection for all users of a Backend with an Owner is trusted")
	}
	w.wants("on behalf of its Owner", good(ca), "")
	w.set(func(s *registry.Backend) { s.CABundle, s.Owner = "nonsense", "" })
	if _, err := w.TLS("", w.spec); reason(t, err) != "InvalidCABundle" {
		t.Errorf("with an unreadable bundle: %v", err)
	}
}

// APIServices with the same Backend are probed on one connection. A certificate presented there
// appears in the status of each, and a refusal is counted for one of them.
func TestWhatIsShownToOneIsShownToAll(t *testing.T) {
	ca := pki.NewCA("ca")
	w := newBench(t, Config{})
	w.bundle(ca)
	names := []string{apiService, "v1.other.example.com"}
	apply := func(names ...string) { // with a Local one
		entries := []*registry.Entry{{Name: fmt.Sprint("v", len(names))}}
		for _, name := range names {
			entries = append(entries, &registry.Entry{Name: name, Backend: w.spec})
		}
		w.generation++
		w.apply(w.generation, entries)
	}
	apply(names[:1]...)
	apply(names...)
	dial := func(p *pki.Pair) string {
		cfg := must.Get(w.TLS("", w.spec))(t)
		return reason(t, shake(t, cfg, &tls.Config{Certificates: []tls.Certificate{p.TLS()}}))
	}
	if got := dial(good(ca)); got != "" {
		t.Fatal(got)
	}
	open, release := w.Guard("", w.spec, good(ca).Chain())
	defer release()
	for i, s := range w.Status()[1:] {
		check.Same(t, names[1-i], s.APIService, "sorted by name")
		if len(s.Leaves) != 1 || len(s.CAs) != 1 || !s.CAs[0].Live {
			t.Errorf("%s: %d leaves, CAs %+v", s.APIService, len(s.Leaves), s.CAs)
		}
	}
	for i, counted := range names {
		check.Same(t, "UnknownAuthority", dial(good(pki.NewCA("another"))), "another CA's certificate")
		check.Same(t, 1, testutil.CollectAndCount(w.hooks.refusals), "APIServices whose refused certificates are counted")
		check.Same(t, 1, testutil.ToFloat64(w.hooks.refusals.WithLabelValues(counted, "UnknownAuthority")), "refusals counted for %s", counted)
		apply(names[i+1:]...)
	}
	if got := dial(good(pki.NewCA("another"))); got != "UnknownAuthority" || testutil.CollectAndCount(w.hooks.refusals) != 0 || lost(open) {
		t.Errorf("%q, or it is counted for a deleted APIService, or a connection is lost: %v", got, lost(open))
	}
}
