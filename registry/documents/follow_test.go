package documents

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// diary records the times of requests.
type diary struct {
	mu    sync.Mutex // guards the fields below
	begun time.Time
	times []time.Duration
}

func (d *diary) note() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.times = append(d.times, time.Since(d.begun))
}

func (d *diary) read() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.times
	d.times, d.begun = nil, time.Now()
	return out
}

// following runs follow with an ask that takes some time and may fail.
func following(t *testing.T, takes time.Duration, failing *atomic.Bool) (*diary, chan struct{}) {
	d, hints := &diary{begun: time.Now()}, make(chan struct{}, 1)
	must.Run(t, func(ctx context.Context) error {
		p := Pace{Every: 2 * time.Second, After: []time.Duration{30 * time.Millisecond, 300 * time.Millisecond}}
		p.follow(ctx, hints, func(ctx context.Context) error {
			d.note()
			if sleep(ctx, takes) && failing.Load() {
				return errors.New("no")
			}
			return ctx.Err()
		})
		return ctx.Err()
	})
	return d, hints
}

func TestFollow(t *testing.T) {
	const ms = time.Millisecond
	var failing atomic.Bool
	for _, tc := range []struct {
		name string
		do   func(hints chan struct{})
		want []time.Duration
	}{
		{"from time to time", func(chan struct{}) { time.Sleep(7 * time.Second) }, []time.Duration{0, 2000 * ms, 4000 * ms, 6000 * ms}},
		{"at once after a hint, and some more times", func(hints chan struct{}) {
			time.Sleep(time.Second)
			hints <- struct{}{}
			time.Sleep(3 * time.Second)
		}, []time.Duration{0, 1000 * ms, 1030 * ms, 1330 * ms, 3330 * ms}},
		{"hints of one change are one question", func(hints chan struct{}) {
			time.Sleep(time.Second)
			for range 10 {
				latest.Wake(hints)
				time.Sleep(ms)
			}
			time.Sleep(200 * ms)
		}, []time.Duration{0, 1000 * ms, 1020 * ms, 1050 * ms}},
		{"failures are asked again sooner", func(chan struct{}) {
			failing.Store(true)
			time.Sleep(2 * time.Second)
			failing.Store(false)
			time.Sleep(3 * time.Second)
		}, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 3100 * ms}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failing.Store(false)
				d, hints := following(t, 0, &failing)
				tc.do(hints)
				synctest.Wait()
				if got := d.read(); !slices.Equal(got, tc.want) {
					t.Errorf("asked at %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// Frequent hints about a server with slow documents cost at most a fifth of the time.
func TestFollowRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, hints := following(t, 100*time.Millisecond, new(atomic.Bool))
		for range 10_000 {
			latest.Wake(hints)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := len(d.read()); n < 18 || n > 22 {
			t.Errorf("%d requests of 100 ms in 10 s", n)
		}
	})
}

// collection serves lists and watches.
type collection struct {
	mu     sync.Mutex // guards the fields below
	asked  []string
	status int // code of lists
	events *io.PipeWriter
}

func (c *collection) do(_ context.Context, r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r.URL.RawQuery+" "+strings.SplitN(r.Header.Get("Accept"), ";", 3)[1])
	if r.URL.Query().Get("watch") == "" {
		return &http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"7"},"items":[]}`))}, nil
	}
	from, to := io.Pipe()
	c.events = to
	context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
	return &http.Response{StatusCode: http.StatusOK, Body: from}, nil
}

func (c *collection) behave(status int) (asked []string, events *io.PipeWriter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, asked, c.asked = status, c.asked, nil
	return asked, c.events
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, d := &collection{status: http.StatusOK}, &diary{begun: time.Now()}
		must.Run(t, func(ctx context.Context) error { return Watch(ctx, c.do, "/apis/g/v1/things", d.note) })
		synctest.Wait()
		asked, events := c.behave(http.StatusForbidden)
		if want := []string{"limit=1 as=PartialObjectMetadataList", "watch=true&resourceVersion=7 as=PartialObjectMetadata"}; !slices.Equal(asked, want) {
			t.Errorf("requests %q, want %q", asked, want)
		}
		check.Same(t, 1, len(d.read()), "changes at the start, one for everything before")
		time.Sleep(time.Minute)
		for range 3 {
			must.Get(io.WriteString(events, `{"type":"ADDED"}`+"\n"))(t)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		check.Same(t, 3, len(d.read()), "changes of three events")

		// The watch ends, and the collection is forbidden for ten minutes: retries become rarer,
		// but never stop.
		_ = events.Close()
		time.Sleep(10 * time.Minute)
		asked, _ = c.behave(http.StatusOK)
		if len(asked) < 15 || len(asked) > 35 || len(d.read()) != 0 {
			t.Errorf("asked %d times in 10 minutes", len(asked))
		}
		time.Sleep(lastRewatch * 2)
		synctest.Wait()
		if asked, _ = c.behave(http.StatusOK); len(asked) != 2 || len(d.read()) != 1 {
			t.Errorf("after it is allowed again: %q", asked)
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
