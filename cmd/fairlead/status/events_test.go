package status

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	coordinationfake "k8s.io/client-go/kubernetes/typed/coordination/v1/fake"
	corefake "k8s.io/client-go/kubernetes/typed/core/v1/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// startEvents runs Events until the test ends, or stop is called.
func startEvents(t *testing.T, s *apiserver, identity string, faults func() map[string]string, entries ...*registry.Entry) (f *feed, stop func()) {
	t.Helper()
	f = &feed{entries: entries, superseded: make(chan struct{})}
	e := must.Get(NewEvents(EventsConfig{
		Table: func() *registry.Table { return nil }, Events: &corefake.FakeCoreV1{Fake: &s.fake}, Leases: &coordinationfake.FakeCoordinationV1{Fake: &s.fake},
		Identity: identity, Faults: faults,
	}))(t)
	e.table = f.table
	return f, must.Run(t, e.Run)
}

// events returns the received Events in short form.
func (s *apiserver) events() []string {
	var out []string
	for _, a := range s.fake.Actions() {
		if a.GetResource().Resource != "events" {
			continue
		}
		create, ok := a.(clienttesting.CreateAction)
		if !ok {
			out = append(out, a.GetVerb())
			continue
		}
		ev := create.GetObject().(*corev1.Event)
		out = append(out, fmt.Sprintf("%s %s %s in %s: %s", ev.InvolvedObject.Name, ev.Type, ev.Reason, ev.Namespace, ev.Message))
	}
	return out
}

func TestEventsTellOfChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := object("a"), object("b"), object("c")
		s := newAPIServer(t, a, b, c)
		var faulty atomic.Bool
		faults := func() map[string]string {
			if faulty.Load() {
				return map[string]string{"b": "its bundle cannot be read"}
			}
			return nil
		}
		f, _ := startEvents(t, s, "one", faults, remote(a, "True", "Passed"), remote(b, "False", "MissingEndpoints"), remote(c, "", ""))
		time.Sleep(time.Minute)
		if got := s.events(); len(got) != 0 {
			t.Fatalf("events for faults from before the start: %q", got)
		}
		down := remote(a, "False", "FailedDiscoveryCheck")
		down.Verdict.Since = time.Now()
		f.set(down, remote(b, "True", "Passed"), remote(c, "True", "Passed"))
		time.Sleep(30 * time.Second)
		f.set(remote(a, "True", "Passed"), remote(b, "True", "Passed"), remote(object("d"), "False", "ServiceNotFound"))
		time.Sleep(time.Second)
		faulty.Store(true)
		time.Sleep(time.Minute)
		want := []string{
			"a Warning FailedDiscoveryCheck in default: requests are answered with 503: m",
			"b Normal Available in default: requests are forwarded again, after 1s of MissingEndpoints",
			"a Normal Available in default: requests are forwarded again, after 30s of FailedDiscoveryCheck",
			"d Warning ServiceNotFound in default: requests are answered with 503: m",
			"b Warning Faulty in default: its bundle cannot be read",
		}
		got := s.events()
		got[1] = strings.Replace(got[1], got[1][strings.Index(got[1], "after ")+6:strings.Index(got[1], " of ")], "1s", 1) // since the year 2000
		check.Same(t, want, got, "Events")
	})
}

// A flapping APIService causes only a handful of calls, and only one replica writes Events.
func TestEventsAreFewAndFromOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := object("a")
		s := newAPIServer(t, a)
		f1, stop1 := startEvents(t, s, "one", nil, remote(a, "True", "Passed"))
		time.Sleep(5 * time.Second)
		f2, _ := startEvents(t, s, "two", nil, remote(a, "True", "Passed"))
		flap := func(n int) {
			for range n {
				for _, status := range []corev1.ConditionStatus{"False", "True"} {
					e := remote(a, status, "Reason of "+string(status))
					e.Verdict.Since = time.Now()
					f1.set(e)
					f2.set(e)
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
		flap(500)
		time.Sleep(time.Second)
		first := len(s.events())
		if first < 2 || first > 60 {
			t.Errorf("%d calls for 1000 changes: %q", first, s.events())
		}
		stop1()
		time.Sleep(time.Minute) // the other replica has taken over
		flap(1)
		time.Sleep(time.Second)
		check.Same(t, 2, len(s.events())-first, "calls by the new leader, %q", s.events()[first:])
	})
}

// A new leader repeats neither a reported fault nor its end, but reports new faults.
func TestFaultsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := object("a")
		s := newAPIServer(t, a)
		var fault atomic.Pointer[map[string]string]
		fault.Store(&map[string]string{"a": "its bundle cannot be read"})
		_, stop := startEvents(t, s, "one", func() map[string]string { return *fault.Load() }, remote(a, "True", "Passed"))
		for _, f := range []map[string]string{{}, {"a": "it is cut"}, {}} {
			time.Sleep(time.Minute)
			fault.Store(&f)
		}
		time.Sleep(time.Minute)
		check.Same(t, []string{"a Warning Faulty in default: it is cut"}, s.events(), "Events")
		stop()
	})
}
