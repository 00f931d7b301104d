package trust

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
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

// settle waits until Run has ticked once, and seen what was applied without a new table.
func settle() {
	time.Sleep(time.Second / 2)
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
		if s := b.Status()[1]; s.Source != "configmap kube-system/bundle/ca.crt" || s.Fault != "the CA bundle has not been read yet" {
			t.Errorf("before the ConfigMap was read: %+v", s)
		}
		settle()
		say(a, object{err: fmt.Errorf("getting it: %w", fs.ErrNotExist)})
		expect("no such ConfigMap", first, "InvalidCABundle")
		say(a, object{data: map[string][]byte{"ca.crt": first.PEM(), "other.crt": second.PEM()}})
		expect("there it is", first, "")
		b.set(func(s *registry.Backend) { s.Port++ })
		check.Same(t, "", b.Status()[1].Fault, "another port, but the same reference")
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
		for _, none := range []string{"nonsense", "/ca.crt", "bundle/"} {
			b.set(func(s *registry.Backend) { s.CAFrom = none })
			time.Sleep(61 * time.Second)
			expect("a reference that is none", second, "InvalidCABundle")
			check.Same(t, fmt.Sprintf("reading the CA bundle from configmap kube-system/%s: the reference %q is not <configmap>/<key>", none, none), b.Status()[1].Fault, "its fault")
		}
		b.set(func(s *registry.Backend) { s.CAFrom = "bundle/ca.crt" })
		settle()
		b.set(func(s *registry.Backend) { s.Port++ })
		settle()
		expect("what was read before the reference was dropped", first, "InvalidCABundle")
		b.set(func(s *registry.Backend) { s.CAFrom = "" })
		settle()
		check.Same(t, "", b.Status()[1].Fault, "without a reference")
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
		open, release := b.Guard(one.Name, one.Backend, good(first).Chain())
		defer release()
		c.changes[ref] <- object{data: map[string][]byte{"one": second.PEM(), "two": second.PEM()}}
		synctest.Wait()
		if !lost(open) {
			t.Error("a connection outlived its bundle")
		}
	})
}

// Run returns after its watches.
func TestRunWaitsForItsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		b := newBench(t, Config{Watch: func(ctx context.Context, _ types.NamespacedName, _ func(map[string][]byte, error)) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return ctx.Err()
		}})
		b.set(func(s *registry.Backend) { s.CAFrom = "bundle/ca.crt" })
		stop := must.Run(t, b.Run)
		settle()
		if stop(); !ended {
			t.Error("a watch goes on")
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
		if fault := b.Status()[1].Fault; !strings.HasSuffix(fault, "are not followed in this configuration") {
			t.Errorf("without a watch: %s", fault)
		}
		b.set(func(s *registry.Backend) { s.Insecure = true })
		settle()
		b.wants("without verification", good(pki.NewCA("ca")), "")
	})
}

// A ConfigMap that cannot be read, for want of a grant, does not keep the roots of the former
// source in force.
func TestAReferenceThatIsNeverRead(t *testing.T) {
	for _, overlap := range []time.Duration{0, time.Minute} {
		for name, read := range map[string]types.NamespacedName{
			"inline":            {Namespace: "kube-system"},
			"another reference": {Namespace: "kube-system", Name: "former"},
			"another namespace": {Namespace: "default", Name: "forbidden"},
		} {
			synctest.Test(t, func(t *testing.T) {
				unread := types.NamespacedName{Namespace: "kube-system", Name: "forbidden"}
				c := newCluster(read, unread)
				b := newBench(t, Config{Watch: c.watch})
				b.overlap = overlap
				must.Run(t, b.Run)
				ca := pki.NewCA("former")
				c.changes[read] <- object{data: map[string][]byte{"ca.crt": ca.PEM()}}
				b.set(func(s *registry.Backend) {
					if s.Namespace, s.CAFrom = read.Namespace, read.Name+"/ca.crt"; name == "inline" {
						s.CABundle, s.CAFrom = string(ca.PEM()), ""
					}
				})
				settle()
				b.wants(name, good(ca), "")
				b.set(func(s *registry.Backend) {
					s.Namespace, s.CABundle, s.CAFrom = unread.Namespace, "", "forbidden/ca.crt"
				})
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
