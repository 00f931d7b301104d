package trust

import (
	"crypto/tls"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Only a trust that is exactly the bundle is one that others could have, too.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pki.NewCA("a"), pki.NewCA("b")
		w := newBench(t, Config{})
		key := func(when string) any {
			t.Helper()
			anchor, ok := w.Share(w.spec)
			if !ok {
				t.Fatalf("%s: nothing can be shared", when)
			}
			return anchor.Key()
		}
		w.bundle(a)
		first := key("a")
		old := w.spec
		w.bundle(b)
		if _, ok := w.Share(w.spec); ok {
			t.Error("shared during an overlap: the replaced CA is still trusted, which others do not know")
		}
		if _, ok := w.Share(old); ok {
			t.Error("shared as who the APIService no longer is")
		}
		time.Sleep(61 * time.Second)
		w.all()[0].tick(time.Now())
		second := key("b, settled")
		if first == second {
			t.Error("two bundles are the same trust")
		}
		w.bundle(b, a)
		if key("b and a") == second {
			t.Error("one bundle and a larger one are the same trust")
		}
		w.set(func(s *registry.Backend) { s.CABundle = append(bundleOf(b), "\n# a comment\n"...) })
		if key("b with a comment") != second {
			t.Error("the same certificates are another trust")
		}
		w.set(func(s *registry.Backend) { s.ServerName = "other.ns.svc" })
		if key("another name") == second {
			t.Error("another server name is the same trust")
		}
		w.set(func(s *registry.Backend) { s.ServerName, s.CABundle = serverName, nil })
		time.Sleep(61 * time.Second)
		w.all()[0].tick(time.Now())
		system := key("the system's roots")
		w.set(func(s *registry.Backend) { s.Insecure = true })
		if k := key("insecure"); k == system || k == second {
			t.Error("no verification is the same trust as another")
		}
		w.set(func(s *registry.Backend) { s.Insecure, s.CABundle = false, []byte("nonsense") })
		if _, ok := w.Share(w.spec); ok {
			t.Error("shared with a bundle that cannot be read")
		}
		w.set(func(s *registry.Backend) { s.CABundle, s.CAFrom = nil, "bundle/ca.crt" })
		if _, ok := w.Share(w.spec); ok {
			t.Error("shared with a bundle that changes without a new table")
		}
	})
}

// An Anchor stays what it was, whatever becomes of the APIService that it was taken from; and its guards end with the certificates.
func TestAnchor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pki.NewCA("a"), pki.NewCA("b")
		w := newBench(t, Config{})
		w.bundle(a)
		anchor, ok := w.Share(w.spec)
		if !ok {
			t.Fatal("nothing can be shared")
		}
		w.bundle(b)
		dial := func(pair *pki.Pair) string {
			return reason(t, shake(t, anchor.TLS(), &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}))
		}
		if got := dial(good(a)); got != "" {
			t.Errorf("a server of its CA: %s", got)
		}
		if dial(good(b)) == "" {
			t.Error("a server of another CA is trusted")
		}
		soon := a.Issue(pki.Leaf{CommonName: "soon", Names: []string{serverName}, NotAfter: time.Now().Add(time.Hour)})
		guard, release := anchor.Guard(chainOf(t, soon))
		other, _ := anchor.Guard(chainOf(t, good(b)))
		if lost(guard) || !lost(other) {
			t.Errorf("at once: its own lost %v, another's lost %v", lost(guard), lost(other))
		}
		w.bundle(b, a)
		time.Sleep(59 * time.Minute)
		if lost(guard) {
			t.Error("lost before its certificate has expired")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !lost(guard) {
			t.Error("kept after its certificate has expired")
		}
		release()
		kept, release := anchor.Guard(chainOf(t, good(a)))
		release()
		release()
		if lost(kept) {
			t.Error("a guard that was released is lost")
		}
	})
}
