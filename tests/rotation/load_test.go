//go:build e2e

package rotation

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

const (
	// rate is the number of requests per second.
	rate = 300
	// freshEvery is the share of requests with a new connection: one in so many.
	freshEvery = 15
	// maxPending limits the running requests: those of a third of a second would be a stall, those
	// of ten seconds a disaster.
	maxPending = 10 * rate
)

// load is a steady stream of requests, and watches that are kept open.
type load struct {
	f       *front
	targets []target
	// callers are replaced when an identity moves to a new certificate.
	callers [3]atomic.Pointer[caller]

	asked atomic.Int64
	slots chan struct{}

	mu      sync.Mutex // guards the fields below
	failed  []string
	ended   []watchEnd
	watches []*watching
	slowest time.Duration
}

// target is what the load reads and watches.
type target struct {
	name       string
	get, watch string
}

// caller is one identity with its long-lived connection.
type caller struct {
	id   identity
	pool *client
}

// watchEnd is how a watch ended.
type watchEnd struct {
	who    string
	target string
	at     time.Time
	err    error // nil: cleanly, between two events
}

func (e watchEnd) String() string {
	return fmt.Sprintf("%s at %s: %v", e.who, e.at.Format("05.000"), e.err)
}

// watching is one watch.
type watching struct {
	who    string
	events atomic.Int64
}

// startLoad starts requests and watches, until the test ends.
func startLoad(t *testing.T, f *front, targets []target, ids [3]identity) *load {
	t.Helper()
	l := &load{f: f, targets: targets, slots: make(chan struct{}, maxPending)}
	for i, id := range ids {
		l.move(i, id)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var owners sync.WaitGroup
	t.Cleanup(func() { cancel(); owners.Wait() })
	for _, tg := range targets {
		for i := range 2 { // a certificate and a front proxy: no rotation ends the token's identity
			w := &watching{who: fmt.Sprintf("watch %d of %s", i, tg.name)}
			l.watches = append(l.watches, w)
			owners.Go(func() { l.keepWatching(ctx, w, i, tg) })
		}
	}
	owners.Go(func() { volley.Pace(ctx, time.Second/rate, func(n int) { l.one(ctx, n) }) })
	return l
}

// move gives one identity new connections with a new certificate. Its open watches stay on the old
// ones.
func (l *load) move(i int, id identity) {
	l.callers[i].Store(&caller{id: id, pool: l.f.client(id, true)})
}

func (l *load) one(ctx context.Context, n int) {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	default:
		l.fail("request %d: %d are under way already", n, maxPending)
		return
	}
	tg := l.targets[n%len(l.targets)]
	c := l.callers[n/len(l.targets)%len(l.callers)].Load()
	use := c.pool
	if n%freshEvery == 0 {
		use = l.f.client(c.id, n%(2*freshEvery) == 0)
		defer use.close()
	}
	l.asked.Add(1)
	begun := time.Now()
	_, err := use.get(ctx, tg.get)
	if ctx.Err() != nil {
		return // the test has ended
	}
	if err != nil {
		l.fail("GET %s: %v", tg.name, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, time.Since(begun))
}

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// keepWatching keeps one watch open at a time.
func (l *load) keepWatching(ctx context.Context, w *watching, i int, tg target) {
	for ctx.Err() == nil {
		err := w.watch(ctx, l.callers[i].Load().pool, tg.watch)
		if ctx.Err() != nil {
			return
		}
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			l.fail("opening %s: %v", w.who, err)
			<-time.After(100 * time.Millisecond)
			continue
		}
		l.mu.Lock()
		l.ended = append(l.ended, watchEnd{who: w.who, target: tg.name, at: time.Now(), err: err})
		l.mu.Unlock()
	}
}

// refusal is why a watch did not start.
type refusal struct{ error }

// watch returns nil when the watch ended between two events with a clean end of the body.
func (w *watching) watch(ctx context.Context, c *client, path string) error {
	res, err := ask.Open(ctx, c.http, c.base+path, c.header)
	if err != nil {
		return &refusal{err}
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case err == nil:
			w.events.Add(1)
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(line)) == 0:
			return nil
		default:
			return fmt.Errorf("%w (after %d bytes of an event)", err, len(line))
		}
	}
}

// mark is the state of the load at one moment.
type mark struct {
	at            time.Time
	asked         int64
	failed, ended int
}

// mark starts a window.
func (l *load) mark() mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = 0
	return mark{at: time.Now(), asked: l.asked.Load(), failed: len(l.failed), ended: len(l.ended)}
}

// judge ends a window and fails the test for every failed request and every watch that was cut off
// in it. Watches of the target ends may end cleanly, because its trust was removed.
func (l *load) judge(t *testing.T, m mark, ends string) {
	t.Helper()
	l.alive(t)
	took, asked := time.Since(m.at), l.asked.Load()-m.asked
	l.mu.Lock()
	defer l.mu.Unlock()
	clean, cut := 0, 0
	for _, e := range l.ended[m.ended:] {
		if e.err == nil && e.target == ends {
			clean++
			continue
		}
		cut++
		t.Errorf("cut off: %s", e)
	}
	failed := l.failed[m.failed:]
	for _, f := range failed[:min(len(failed), 10)] {
		t.Errorf("failed: %s", f)
	}
	if len(failed) > 0 {
		t.Errorf("%d requests failed", len(failed))
	}
	if least := int64(took.Seconds() * rate * 0.8); asked < least {
		t.Errorf("only %d requests in %s, want %d a second", asked, took, rate)
	}
	t.Logf("%d requests in %.1f s (%.0f/s, slowest %s), %d failed; %d watches open, %d cut off, %d ended with their trust",
		asked, took.Seconds(), float64(asked)/took.Seconds(), l.slowest.Round(time.Millisecond), len(failed), len(l.watches), cut, clean)
}

// alive waits until every watch has got an event: a hung watch is as bad as a cut one.
func (l *load) alive(t *testing.T) {
	t.Helper()
	before := make([]int64, len(l.watches))
	for i, w := range l.watches {
		before[i] = w.events.Load()
	}
	suite.Eventually(t, 10*time.Second, "every watch gets an event", func() (bool, string) {
		for i, w := range l.watches {
			if w.events.Load() == before[i] {
				return false, w.who + " gets none"
			}
		}
		return true, ""
	})
}
