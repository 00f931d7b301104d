package status

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordinationfake "k8s.io/client-go/kubernetes/typed/coordination/v1/fake"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationfake "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1/fake"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a table that the test changes.
type feed struct {
	mu         sync.Mutex // guards the fields below
	entries    []*registry.Entry
	superseded chan struct{}

	leading prometheus.Gauge // of the writer
}

// state is a snapshot of a feed.
type state struct {
	entries    []*registry.Entry
	superseded <-chan struct{}
}

func (s state) Entries() []*registry.Entry { return s.entries }

func (s state) Superseded() <-chan struct{} { return s.superseded }

func (f *feed) table() table {
	f.mu.Lock()
	defer f.mu.Unlock()
	return state{f.entries, f.superseded}
}

func (f *feed) set(entries ...*registry.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = entries
	close(f.superseded)
	f.superseded = make(chan struct{})
}

// start runs a writer with a Lease until the test ends, or stop is called.
func start(t *testing.T, s *apiserver, identity string, entries ...*registry.Entry) (f *feed, stop func()) {
	t.Helper()
	return run(t, s, Config{Leases: &coordinationfake.FakeCoordinationV1{Fake: &s.fake}, Identity: identity}, entries...)
}

// run runs a writer of c until the test ends, or stop is called.
func run(t *testing.T, s *apiserver, c Config, entries ...*registry.Entry) (f *feed, stop func()) {
	t.Helper()
	f = &feed{entries: entries, superseded: make(chan struct{})}
	c.Table = func() *registry.Table { return nil }
	c.APIServices = (&apiregistrationfake.FakeApiregistrationV1{Fake: &s.fake}).APIServices()
	w := must.Get(New(c))(t)
	w.table, f.leading = f.table, w.metrics.leading
	return f, must.Run(t, w.Run)
}

func object(name string, conditions ...apiregistrationv1.APIServiceCondition) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)},
		Status:     apiregistrationv1.APIServiceStatus{Conditions: conditions},
	}
}

func remote(o *apiregistrationv1.APIService, status corev1.ConditionStatus, reason string) *registry.Entry {
	return &registry.Entry{
		Name: o.Name, Object: o, GroupVersion: schema.GroupVersion{Group: o.Name}, Backend: &registry.Backend{},
		Verdict: registry.Verdict{Status: status, Reason: reason, Message: "m", Since: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)},
	}
}

func ours(status apiregistrationv1.ConditionStatus, reason string) apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{
		Type: conditionType, Status: status, Reason: reason, Message: "m", LastTransitionTime: metav1.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func theirs() apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: "Passed"}
}

// oneWritten is an apiserver with one APIService whose status a first writer has written.
func oneWritten(t *testing.T) (o *apiregistrationv1.APIService, s *apiserver, f *feed, stop func()) {
	t.Helper()
	o = object("a")
	s = newAPIServer(t, o)
	f, stop = start(t, s, "one", remote(o, "True", "Passed"))
	time.Sleep(time.Second)
	return o, s, f, stop
}

// wrote checks which APIServices were written after since.
func (s *apiserver) wrote(t *testing.T, when string, since time.Time, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.since(since), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// has checks the conditions of an APIService.
func (s *apiserver) has(t *testing.T, when, name string, want ...string) {
	t.Helper()
	check.Same(t, want, s.conditions(t, name), "%s: %s", when, name)
}

// New requires its configuration, and the writer follows the given table.
func TestNew(t *testing.T) {
	s := newAPIServer(t)
	asked := false
	good := Config{
		Table: func() *registry.Table { asked = true; return nil }, APIServices: (&apiregistrationfake.FakeApiregistrationV1{Fake: &s.fake}).APIServices(),
		Leases: &coordinationfake.FakeCoordinationV1{Fake: &s.fake}, Identity: "one",
	}
	if must.Get(New(good))(t).table(); !asked {
		t.Error("the writer has another table")
	}
	for name, change := range map[string]func(*Config){
		"no table": func(c *Config) { c.Table = nil }, "no APIServices": func(c *Config) { c.APIServices = nil },
		"no Leases": func(c *Config) { c.Leases = nil }, "no identity": func(c *Config) { c.Identity = "" },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWritesOnlyWhatDiffersAndOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fresh, same, changed, unknown, local := object("fresh", theirs()), object("same", theirs(), ours("True", "Passed")),
			object("changed", ours("True", "Passed")), object("unknown"), object("local", theirs(), ours("True", "Passed"))
		s := newAPIServer(t, fresh, same, changed, unknown, local)
		nowLocal := remote(local, "True", "Local")
		nowLocal.Backend = nil
		f, _ := start(t, s, "one", remote(fresh, "True", "Passed"), remote(same, "True", "Passed"),
			remote(changed, "False", "MissingEndpoints"), remote(unknown, "", ""), nowLocal)
		time.Sleep(time.Second)
		s.wrote(t, "written", time.Time{}, "changed", "fresh", "local")
		for i, of := range [][3]string{{"changed", "False", "MissingEndpoints"}, {"fresh", "True", "Passed"}} {
			want := `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"` + of[0] + `","uid":"uid of ` + of[0] + `"},"status":{"conditions":` +
				`[{"type":"fairlead.dev/Available","status":"` + of[1] + `","lastTransitionTime":"2000-01-01T00:00:00Z","reason":"` + of[2] + `","message":"m"}]}}`
			check.Same(t, want, s.patches[i].body, "applied")
		}
		for name, want := range map[string][]string{
			"fresh":   {"Available=True Passed", "fairlead.dev/Available=True Passed"},
			"changed": {"fairlead.dev/Available=False MissingEndpoints"},
			"unknown": nil,
			"local":   {"Available=True Passed"},
		} {
			s.has(t, "written", name, want...)
		}
		from := time.Now()
		for range 100 {
			f.set(f.entries...)
			time.Sleep(time.Minute)
		}
		s.wrote(t, "though nothing changed", from)
	})
}

func TestOneOfTwoWritesAndTheOtherTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s, f1, stop := oneWritten(t)
		f2, _ := start(t, s, "two", remote(o, "False", "MissingEndpoints"))
		time.Sleep(time.Minute)
		f2.set(remote(o, "False", "ServiceNotFound"))
		time.Sleep(time.Minute)
		if got := s.since(time.Time{}); len(got) != 1 {
			t.Fatalf("%d writes, want only the leader's", len(got))
		}
		stop() // releases the Lease
		time.Sleep(5 * time.Second)
		s.has(t, "5 s after the leader left", "a", "fairlead.dev/Available=False ServiceNotFound")
		if one, two := testutil.ToFloat64(f1.leading), testutil.ToFloat64(f2.leading); one != 0 || two != 1 {
			t.Errorf("the leading metrics of the two: %v and %v", one, two)
		}
		f1.set(remote(o, "True", "Passed"))
		time.Sleep(time.Minute)
		if got := s.since(time.Time{}); len(got) != 2 {
			t.Errorf("%d writes, want 2", len(got))
		}
	})
}

func TestSurvivesTheLossOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s, f, _ := oneWritten(t)
		// Another holder takes the Lease by force and writes a status that this replica's table
		// does not show.
		s.steal(t)
		must.Do(t, s.tracker.Update(apiregistrationv1.SchemeGroupVersion.WithResource("apiservices"), object("a", ours("False", "Other")), ""))
		time.Sleep(12 * time.Second) // the renew deadline is past, the thief's Lease is not
		from := time.Now()
		f.set(remote(o, "False", "MissingEndpoints"))
		time.Sleep(time.Second)
		s.wrote(t, "without the Lease", from)
		time.Sleep(30 * time.Second)
		s.has(t, "after the thief's Lease ran out", "a", "fairlead.dev/Available=False MissingEndpoints")
	})
}

func TestApiserverThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := object("a"), object("b")
		s := newAPIServer(t, a, b)
		s.down.Store(true)
		f, _ := start(t, s, "one", remote(a, "True", "Passed"), remote(b, "True", "Passed"))
		time.Sleep(time.Minute)
		s.down.Store(false)
		denied := "a"
		s.denied.Store(&denied)
		time.Sleep(5 * time.Second)
		s.wrote(t, "back, but a is denied", time.Time{}, "b")
		f.set(remote(a, "True", "Passed"), remote(b, "False", "MissingEndpoints"))
		time.Sleep(time.Second)
		s.wrote(t, "one that is denied holds up the other", time.Time{}, "b", "b")
		s.denied.Store(nil)
		time.Sleep(lastRetry)
		s.has(t, "after the last pause", "a", "fairlead.dev/Available=True Passed")
	})
}

func TestFlappingCostsOneWriteASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s, f, _ := oneWritten(t)
		for i := range 1000 {
			f.set(remote(o, "False", strconv.Itoa(i)))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if n := len(s.since(time.Time{})); n > 13 {
			t.Errorf("%d writes in 10 s", n)
		}
		s.has(t, "at rest", "a", "fairlead.dev/Available=False 999")
	})
}

// A message that alternates while the reason stays, as with a backend whose connections break in
// two ways, costs two writes a minute.
func TestRewordingIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := object("a")
		s := newAPIServer(t, o)
		f, _ := start(t, s, "one", remote(o, "True", "Passed"))
		for i := range 240 {
			e := remote(o, "False", "Failed")
			e.Verdict.Message = []string{"EOF", "connection reset"}[i%2]
			f.set(e)
			time.Sleep(500 * time.Millisecond)
		}
		if n := len(s.since(time.Time{})); n < 2 || n > 6 {
			t.Errorf("%d writes in two minutes", n)
		}
	})
}

func TestObjectMadeAnewIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resource := apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
		o, s, f, _ := oneWritten(t)
		must.Do(t, s.tracker.Delete(resource, "", "a"))
		// The watch is behind: the table still has the APIService, with another verdict.
		f.set(remote(o, "False", "ServiceNotFound"))
		time.Sleep(time.Minute)
		anew := object("a")
		anew.UID = "another"
		must.Do(t, s.tracker.Add(anew))
		f.set(remote(anew, "True", "Passed"))
		time.Sleep(time.Second)
		s.has(t, "at the end", "a", "fairlead.dev/Available=True Passed")
	})
}
