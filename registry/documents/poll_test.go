package documents

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// book notes when a backend was asked for how many entries.
type book struct {
	mu    sync.Mutex // guards what follows
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
	set   *Set[*book]
	books []*book
	begun time.Time
}

func newRig() *rig {
	r := &rig{begun: time.Now()}
	r.set = NewSet(Config[*book]{
		New: func([]*registry.Entry) *book {
			b := &book{}
			r.books = append(r.books, b)
			return b
		},
		Ask: func(ctx context.Context, b *book, entries []*registry.Entry) error {
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
		},
	})
	return r
}

// entry makes the entry of a backend by name; one that is Local has no backend.
func entry(name string, b *registry.Backend, verdict corev1.ConditionStatus) *registry.Entry {
	return &registry.Entry{
		Name: name, Backend: b, Endpoints: []registry.Endpoint{{Address: "10.0.0.1:443"}}, Verdict: registry.Verdict{Status: verdict},
		Object: &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}},
	}
}

func (r *rig) update(ctx context.Context, entries ...*registry.Entry) { r.set.update(ctx, entries) }

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := newRig()
		// Two APIServices of one backend, whose Backends differ as pointers only, and one of another.
		a1, a2 := entry("a1", &registry.Backend{Service: "a"}, corev1.ConditionTrue), entry("a2", &registry.Backend{Service: "a"}, corev1.ConditionFalse)
		b1 := entry("b1", &registry.Backend{Service: "a", ServerName: "other"}, "")
		r.update(ctx, a1, a2, b1, entry("local", nil, corev1.ConditionTrue))
		synctest.Wait()
		if len(r.books) != 2 {
			t.Fatalf("%d backends, want 2", len(r.books))
		}
		for _, b := range r.books {
			// The unavailable one is not asked for, the one that was never checked is.
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
		// Failures come closer together at first, and never further apart than successes.
		r.books[0].behave(errors.New("no"), false)
		time.Sleep(time.Minute + leastGap)
		r.books[0].all()
		time.Sleep(10 * time.Minute)
		if times, _ := r.books[0].all(); len(times) < 9 {
			t.Errorf("asked %d times in ten minutes of failure", len(times))
		}
		cancel()
		r.set.Wait()
	})
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
				ctx, cancel := context.WithCancel(t.Context())
				r := newRig()
				r.update(ctx, entry("a1", backend, tt.from))
				time.Sleep(time.Second)
				synctest.Wait()
				r.books[0].all()
				r.update(ctx, tt.now...)
				time.Sleep(leastGap)
				synctest.Wait()
				if times, _ := r.books[0].all(); (len(times) > 0) != tt.want {
					t.Errorf("asked %d times", len(times))
				}
				cancel()
				r.set.Wait()
			})
		})
	}
}

// A backend that hangs delays nobody, and its goroutine ends with it.
func TestHungBackendEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		hung, well := entry("hung", &registry.Backend{Service: "hung"}, ""), entry("well", &registry.Backend{Service: "well"}, "")
		r.update(t.Context(), hung)
		r.books[0].behave(nil, true)
		time.Sleep(2 * time.Minute)
		r.update(t.Context(), hung, well)
		synctest.Wait()
		if times, _ := r.books[1].all(); len(times) != 1 || times[0] != 2*time.Minute {
			t.Errorf("the other backend was asked at %v", times)
		}
		r.update(t.Context())
		r.set.Wait()
	})
}

func TestGet(t *testing.T) {
	answer := func(body string, length int64) func(context.Context, *http.Request) (*http.Response, error) {
		return func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, ContentLength: length, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	hang := func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	tests := []struct {
		name string
		do   func(context.Context, *http.Request) (*http.Response, error)
		want Reason
	}{
		{"answer", answer("1234", 4), ""},
		{"too long", answer("12345", -1), ReasonTooLarge},
		{"announces too much", answer("", 5), ReasonTooLarge},
		{"hangs", hang, ReasonTimeout},
		{"refuses", func(context.Context, *http.Request) (*http.Response, error) { return nil, errors.New("refused") }, ReasonUnreachable},
		{"breaks off", func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(io.MultiReader(bytes.NewReader([]byte("1")), cutShort{}))}, nil
		}, ReasonUnreachable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := Get(t.Context(), tt.do, Question{Path: "/apis", Limit: 4})
				if reasonOf(err) != tt.want {
					t.Errorf("got %q (%v), %q", reasonOf(err), err, a.Body)
				}
			})
		})
	}
}

// A body of any length comes out as it went in, whatever is announced, and nothing beyond the limit is put together.
func TestReadAll(t *testing.T) {
	const limit = 5*mostChunk + 3
	text := bytes.Repeat([]byte("0123456789abcdef-"), limit/17+1)
	for _, n := range []int{0, 1, leastChunk - 1, leastChunk, leastChunk + 1, mostChunk, 3*mostChunk + 1, limit, limit + 1} {
		for _, announced := range []int64{-1, 0, int64(n), 1 << 40} {
			got, err := readAll(iotest.HalfReader(bytes.NewReader(text[:n])), announced, limit)
			if n > limit {
				if !errors.Is(err, errTooLong) || got != nil {
					t.Errorf("%d bytes: %d came out, %v", n, len(got), err)
				}
				continue
			}
			if err != nil || !bytes.Equal(got, text[:n]) {
				t.Errorf("%d bytes, %d announced: %d came out, %v", n, announced, len(got), err)
			}
		}
	}
	before := allocated()
	if _, err := readAll(endless{}, -1, 32<<20); !errors.Is(err, errTooLong) {
		t.Errorf("a body without end: %v", err)
	}
	if n := (allocated() - before) >> 20; n > 34 {
		t.Errorf("%d MiB were taken for 32 MiB", n)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type cutShort struct{}

func (cutShort) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
