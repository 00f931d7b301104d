package documents

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// book records the requests to a backend: when, and for which entries.
type book struct {
	mu    sync.Mutex // guards the fields below
	times []time.Duration
	asked [][]string
	err   error
	hang  bool
}

func (b *book) all() (times []time.Duration, asked [][]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	times, asked = b.times, b.asked
	b.times, b.asked = nil, nil
	return times, asked
}

func (b *book) behave(err error, hang bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err, b.hang = err, hang
}

type rig struct {
	ctx   context.Context
	set   *set[book]
	last  []*registry.Entry
	books []*book
	begun time.Time
}

// newRig returns a rig whose goroutines end with the test.
func newRig(t *testing.T) *rig {
	ctx, cancel := context.WithCancel(t.Context())
	r := &rig{ctx: ctx, begun: time.Now()}
	t.Cleanup(func() {
		cancel()
		r.set.running.Wait()
	})
	r.set = newSet(func(ctx context.Context, known *atomic.Pointer[book], entries []*registry.Entry) error {
		b := known.Load()
		b.mu.Lock()
		var names []string
		for _, e := range entries {
			names = append(names, e.Name)
		}
		b.times, b.asked = append(b.times, time.Since(r.begun)), append(b.asked, names)
		err, hang := b.err, b.hang
		b.mu.Unlock()
		if hang {
			<-ctx.Done()
		}
		return err
	}, func(s, _ *book) *book { return s })
	return r
}

// entry returns an entry with backend b; nil is Local.
func entry(name string, b *registry.Backend, verdict corev1.ConditionStatus) *registry.Entry {
	return &registry.Entry{
		Name: name, Backend: b, Endpoints: []registry.Endpoint{{Address: "10.0.0.1:443"}}, Verdict: registry.Verdict{Status: verdict},
		Object: &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}},
	}
}

func (r *rig) update(entries ...*registry.Entry) {
	r.set.update(r.ctx, latest.Diff(r.last, entries))
	r.set.forget()
	r.last = entries
	for of := range r.set.backends.Range {
		if known := r.set.find(of.(*registry.Backend)).known.Load(); !slices.Contains(r.books, known) {
			r.books = append(r.books, known)
		}
	}
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		// Two APIServices share a backend, a third has another.
		a := &registry.Backend{Service: "a"}
		a1, a2 := entry("a1", a, corev1.ConditionTrue), entry("a2", a, corev1.ConditionFalse)
		b1 := entry("b1", &registry.Backend{Service: "a", ServerName: "other"}, "")
		r.update(a1, a2, b1, entry("local", nil, corev1.ConditionTrue))
		synctest.Wait()
		if len(r.books) != 2 {
			t.Fatalf("%d backends, want 2", len(r.books))
		}
		for _, b := range r.books {
			// An unavailable APIService is not requested, an unchecked one is.
			if times, asked := b.all(); len(times) != 1 || times[0] != 0 || len(asked[0]) != 1 {
				t.Errorf("asked at %v for %v", times, asked)
			}
		}
		time.Sleep(10 * time.Minute)
		for _, b := range r.books {
			times, _ := b.all()
			last := time.Duration(0)
			for _, at := range times {
				if gap := at - last; gap < 40*time.Second || gap > time.Minute+leastGap {
					t.Errorf("a pause of %s", gap)
				}
				last = at
			}
		}
		// After failures, the pauses are shorter at first, and never longer than after successes.
		r.books[0].behave(errors.New("no"), false)
		time.Sleep(time.Minute + leastGap)
		r.books[0].all()
		time.Sleep(10 * time.Minute)
		if times, _ := r.books[0].all(); len(times) < 9 {
			t.Errorf("%d requests in ten minutes of failure", len(times))
		}
		r.books[0].behave(nil, false)
		time.Sleep(3 * time.Minute)
		r.books[0].all()
		r.books[0].behave(errors.New("no"), false)
		time.Sleep(2 * time.Minute)
		if times, _ := r.books[0].all(); len(times) < 6 {
			t.Errorf("a second row of failures: %d requests in two minutes", len(times))
		}
	})
}

// The pause doubles with each failure in a row, up to lastRetry. A success ends the row.
func TestPauses(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: every, 1: firstRetry, 2: 2 * firstRetry, 5: 16 * firstRetry, 99: lastRetry} {
		for range 100 {
			if got := pause(failures); got < want*8/10 || got > want*12/10 {
				t.Fatalf("after %d failures: %s, want about %s", failures, got, want)
			}
		}
	}
}

func TestAskable(t *testing.T) {
	backend := &registry.Backend{Service: "a"}
	for verdict, want := range map[corev1.ConditionStatus]bool{"": true, corev1.ConditionUnknown: true, corev1.ConditionTrue: true, corev1.ConditionFalse: false} {
		e := entry("a", backend, verdict)
		if Askable(e) != want {
			t.Errorf("with a verdict of %q: %v", verdict, !want)
		}
		if e.Endpoints = nil; Askable(e) {
			t.Errorf("with a verdict of %q, without an endpoint", verdict)
		}
	}
}

func TestWakes(t *testing.T) {
	backend := &registry.Backend{Service: "a"}
	changed := func(f func(*registry.Entry)) *registry.Entry {
		e := entry("a1", backend, corev1.ConditionTrue)
		f(e)
		return e
	}
	tests := []struct {
		name string
		from corev1.ConditionStatus
		now  []*registry.Entry
		want bool
	}{
		{"nothing", corev1.ConditionTrue, []*registry.Entry{changed(func(*registry.Entry) {})}, false},
		{"recovery", corev1.ConditionFalse, []*registry.Entry{changed(func(*registry.Entry) {})}, true},
		{"first verdict", "", []*registry.Entry{changed(func(*registry.Entry) {})}, true},
		{"failure", corev1.ConditionTrue, []*registry.Entry{entry("a1", backend, corev1.ConditionFalse)}, false},
		{"another endpoint", corev1.ConditionTrue, []*registry.Entry{changed(func(e *registry.Entry) { e.Endpoints[0].Address = "10.0.0.2:443" })}, true},
		{"an endpoint's health", corev1.ConditionTrue, []*registry.Entry{changed(func(e *registry.Entry) { e.Endpoints[0].Health = registry.Healthy })}, false},
		{"another group-version", corev1.ConditionTrue, []*registry.Entry{entry("a1", backend, corev1.ConditionTrue), entry("a2", backend, "")}, true},
		{"an annotation", corev1.ConditionTrue, []*registry.Entry{changed(func(e *registry.Entry) { e.Object.Annotations = map[string]string{"x": "y"} })}, true},
		{"a priority", corev1.ConditionTrue, []*registry.Entry{changed(func(e *registry.Entry) { e.Object.Spec.VersionPriority = 7 })}, true},
		{"a status", corev1.ConditionTrue, []*registry.Entry{changed(func(e *registry.Entry) { e.Object.ResourceVersion = "7" })}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.update(entry("a1", backend, tt.from))
				time.Sleep(time.Second)
				synctest.Wait()
				r.books[0].all()
				r.update(tt.now...)
				time.Sleep(leastGap)
				synctest.Wait()
				if times, _ := r.books[0].all(); (len(times) > 0) != tt.want {
					t.Errorf("asked %d times", len(times))
				}
			})
		})
	}
}

// A hanging backend delays no other, and its goroutine ends with it.
func TestHungBackendEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		hung, well := entry("hung", &registry.Backend{Service: "hung"}, ""), entry("well", &registry.Backend{Service: "well"}, "")
		r.update(hung)
		r.books[0].behave(nil, true)
		time.Sleep(2 * time.Minute)
		r.update(hung, well)
		synctest.Wait()
		if times, _ := r.books[1].all(); len(times) != 1 || times[0] != 2*time.Minute {
			t.Errorf("the other backend was asked at %v", times)
		}
		r.update()
		r.set.running.Wait()
	})
}

// Another trust of the same Service means another connection, but the same backend: its state
// stays. Another Service is another backend.
func TestKnownUnderOtherTrust(t *testing.T) {
	tests := []struct {
		name string
		now  registry.Backend
		want int // backends with separate state
	}{
		{"another TLS name", registry.Backend{Service: "a", Port: 443, ServerName: "other"}, 1},
		{"another CA", registry.Backend{Service: "a", Port: 443, CABundle: "other"}, 1},
		{"another Service", registry.Backend{Service: "b", Port: 443}, 2},
		{"another port", registry.Backend{Service: "a", Port: 444}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.update(entry("a1", &registry.Backend{Service: "a", Port: 443}, ""))
				r.update(entry("a1", &tt.now, ""))
				if r.set.find(&tt.now) == nil || len(r.books) != tt.want {
					t.Errorf("backend %v of %d", r.set.find(&tt.now), len(r.books))
				}
				r.update()
				r.set.running.Wait()
			})
		})
	}
}
