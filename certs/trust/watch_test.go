package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// cluster is a set of ConfigMaps that can be watched, and whose watches can be broken.
type cluster struct {
	changes map[types.NamespacedName]chan object
	broken  map[types.NamespacedName]chan error
	started map[types.NamespacedName]int
	ended   map[types.NamespacedName]int
}

func newCluster(refs ...types.NamespacedName) *cluster {
	c := &cluster{changes: map[types.NamespacedName]chan object{}, broken: map[types.NamespacedName]chan error{}, started: map[types.NamespacedName]int{}, ended: map[types.NamespacedName]int{}}
	for _, r := range refs {
		c.changes[r], c.broken[r] = make(chan object, 8), make(chan error)
	}
	return c
}

func (c *cluster) watch(ctx context.Context, ref types.NamespacedName, changed func(map[string][]byte, error)) error {
	c.started[ref]++
	defer func() { c.ended[ref]++ }()
	for {
		select {
		case o := <-c.changes[ref]:
			changed(o.data, o.err)
		case err := <-c.broken[ref]:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settle waits until Run, which looks once a second, has seen what was applied without a new table.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestReferencedBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := types.NamespacedName{Namespace: "kube-system", Name: "bundle"}
		other := types.NamespacedName{Namespace: "kube-system", Name: "other"}
		c := newCluster(a, other)
		renewed := 0
		b := newBench(t, Config{Watch: c.watch, Renewed: func(string) { renewed++ }})
		must.Run(t, b.Run)
		settle() // Run has looked before there was anything to watch

		first, second := pki.NewCA("first"), pki.NewCA("second")
		say := func(ref types.NamespacedName, o object) {
			c.changes[ref] <- o
			synctest.Wait()
		}
		expect := func(when string, ca *pki.CA, want string) {
			t.Helper()
			b.wants(when, good(ca), want)
		}

		b.set(func(s *registry.Backend) { s.CAFrom = "bundle/ca.crt" })
		expect("before the ConfigMap was read", first, "InvalidCABundle")
		settle()
		say(a, object{err: fmt.Errorf("getting it: %w", fs.ErrNotExist)})
		expect("no such ConfigMap", first, "InvalidCABundle")
		say(a, object{data: map[string][]byte{"ca.crt": first.PEM(), "other.crt": second.PEM()}})
		expect("there it is", first, "")
		before := renewed
		say(a, object{err: errors.New("the apiserver is away")})
		expect("a read that failed changes nothing", first, "")
		say(a, object{data: map[string][]byte{"ca.crt": second.PEM()}})
		if before == 0 || renewed != before+1 {
			t.Errorf("Renewed was called %d times for the first bundle, %d times for the next, want 1", before, renewed-before)
		}
		expect("replaced, with overlap", first, "")
		expect("the backend follows", second, "")
		expect("and ends the overlap", first, "UnknownAuthority")
		say(a, object{data: map[string][]byte{"tls.crt": second.PEM()}})
		expect("key gone, last good kept", second, "")
		time.Sleep(61 * time.Second)
		expect("for the overlap", second, "InvalidCABundle")
		say(a, object{data: map[string][]byte{"ca.crt": second.PEM()}})
		expect("back", second, "")
		say(a, object{err: fs.ErrNotExist})
		time.Sleep(61 * time.Second)
		expect("deletion ends trust", second, "InvalidCABundle")

		c.broken[a] <- errors.New("too old resource version")
		time.Sleep(2 * rewatchAfter)
		say(a, object{data: map[string][]byte{"ca.crt": first.PEM()}})
		expect("a broken watch is started again", first, "")

		b.set(func(s *registry.Backend) { s.CAFrom = "other/ca.crt" })
		settle()
		expect("until the other has been read the first counts", first, "")
		say(other, object{data: map[string][]byte{"ca.crt": second.PEM()}})
		expect("read", second, "")
		if c.started[a] != 2 || c.started[other] != 1 {
			t.Errorf("watches started: %v", c.started)
		}
		b.set(func(s *registry.Backend) { s.CAFrom = "nonsense" })
		time.Sleep(61 * time.Second)
		expect("a reference that is none", second, "InvalidCABundle")
		b.set(func(s *registry.Backend) { s.CAFrom = "bundle/ca.crt" })
		settle()
		b.set(func(s *registry.Backend) { s.CAFrom = "" })
		settle()
		if c.started[a] != 3 || c.ended[a] != 3 {
			t.Errorf("nobody refers to it, and of %d watches %d have ended", c.started[a], c.ended[a])
		}
	})
}

// Two APIServices share one watch, each with its own key. The later one gets the object's current
// content.
func TestSharedReference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ref := types.NamespacedName{Namespace: "ns", Name: "bundle"}
		c := newCluster(ref)
		b := newBench(t, Config{Watch: c.watch})
		must.Run(t, b.Run)
		synctest.Wait()
		spec := func(key string) *registry.Entry {
			return &registry.Entry{Name: key, Backend: &registry.Backend{Namespace: "ns", ServerName: serverName, CAFrom: "bundle/" + key, Owner: key}}
		}
		one, two := spec("one"), spec("two")
		b.apply(1, []*registry.Entry{one})
		settle()
		first, second := pki.NewCA("first"), pki.NewCA("second")
		c.changes[ref] <- object{data: map[string][]byte{"one": first.PEM(), "two": second.PEM()}}
		synctest.Wait()
		b.apply(2, []*registry.Entry{one, two})
		settle()
		for e, ca := range map[*registry.Entry]*pki.CA{one: first, two: second} {
			b.name, b.spec = e.Name, e.Backend
			b.wants(e.Name, good(ca), "")
		}
		if c.started[ref] != 1 {
			t.Errorf("%d watches, want 1", c.started[ref])
		}
	})
}

func TestReferenceWithoutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		must.Run(t, b.Run)
		b.set(func(s *registry.Backend) { s.CAFrom = "bundle/ca.crt" })
		settle()
		b.wants("without a watch", good(pki.NewCA("ca")), "InvalidCABundle")
	})
}

// A ConfigMap that cannot be read, for want of a grant, does not keep the roots of the former
// source in force.
func TestAReferenceThatIsNeverRead(t *testing.T) {
	for _, overlap := range []time.Duration{0, time.Minute} {
		for name, former := range map[string]func(*registry.Backend, *pki.CA){
			"inline":            func(s *registry.Backend, ca *pki.CA) { s.CABundle = string(ca.PEM()) },
			"another reference": func(s *registry.Backend, _ *pki.CA) { s.CAFrom = "former/ca.crt" },
		} {
			synctest.Test(t, func(t *testing.T) {
				read := types.NamespacedName{Namespace: "kube-system", Name: "former"}
				unread := types.NamespacedName{Namespace: "kube-system", Name: "forbidden"}
				c := newCluster(read, unread)
				b := newBench(t, Config{Watch: c.watch})
				b.overlap = overlap
				must.Run(t, b.Run)
				ca := pki.NewCA("former")
				c.changes[read] <- object{data: map[string][]byte{"ca.crt": ca.PEM()}}
				b.set(func(s *registry.Backend) { former(s, ca) })
				settle()
				b.wants(name, good(ca), "")
				b.set(func(s *registry.Backend) { s.CABundle, s.CAFrom = "", "forbidden/ca.crt" })
				settle()
				b.wants(name+", until the other is read", good(ca), "")
				time.Sleep(61 * time.Second)
				b.wants(name+", and the other was never read", good(ca), "InvalidCABundle")
				c.changes[unread] <- object{data: map[string][]byte{"ca.crt": ca.PEM()}}
				settle()
				b.wants(name+", and the other was read at last", good(ca), "")
			})
		}
	}
}
