//go:build e2e

package soak

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slots limits the running requests: those of half a minute, as long as a client waits.
	slots = 4096
	// watchers is how many watches are open at any time.
	watchers = 9
)

// load sends requests at a steady rate, whether or not they are answered, and keeps watches open.
type load struct {
	w     *world
	rng   *rand.Rand // used only by dispatch
	asked atomic.Int64
	slots chan struct{}

	cancel  context.CancelFunc // ends the dispatcher and the watches
	owners  sync.WaitGroup
	counter sync.Map // :: group → *atomic.Int64, requests that have ended; "" is all

	mu    sync.Mutex // guards lines
	lines map[line]*http.Transport
}

// line is a set of connections, of one caller or shared by several.
type line struct {
	door, owner string
	h2          bool
}

func newLoad(w *world) *load {
	return &load{w: w, rng: rand.New(rand.NewPCG(*seed, 0)), slots: make(chan struct{}, slots), lines: map[line]*http.Transport{}}
}

func (l *load) start(ctx context.Context) {
	asking, cancel := context.WithCancel(ctx)
	l.cancel = cancel
	l.owners.Go(func() { l.dispatch(ctx, asking) })
	for i := range watchers {
		rng := rand.New(rand.NewPCG(*seed, uint64(100+i)))
		l.owners.Go(func() { l.keepWatching(asking, rng) })
	}
}

// stop stops the load and waits for running requests.
func (l *load) stop() {
	l.cancel()
	l.owners.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, t := range l.lines {
		t.CloseIdleConnections()
		delete(l.lines, key)
	}
}

// dispatch starts the requests that are due until asking ends. They end with ctx, or by themselves.
func (l *load) dispatch(ctx, asking context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	due, last := 0.0, time.Now()
	for {
		select {
		case <-asking.Done():
			return
		case <-tick.C:
		}
		// At most a quarter of a second's requests at once, so that a stall of the machine does not
		// cause a flood.
		due = min(due+time.Since(last).Seconds()*float64(rate), float64(rate)/4)
		last = time.Now()
		for ; due >= 1; due-- {
			t := l.draw()
			select {
			case l.slots <- struct{}{}:
				l.owners.Go(func() {
					defer func() { <-l.slots }()
					l.do(ctx, t)
					l.counterOf("").Add(1)
					if t.group != nil {
						l.counterOf(t.group.name).Add(1)
					}
				})
			default: // all slots are used: skip it
			}
		}
	}
}

func (l *load) counterOf(group string) *atomic.Int64 {
	n, _ := l.counter.LoadOrStore(group, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// dose waits until n more requests for group (empty: for anything) have ended, or for 12 s: when
// everything hangs, none ends.
func (l *load) dose(ctx context.Context, group string, n int) {
	const looks = 240 // 12 s: a little longer than a request may take
	tick := time.NewTicker(look)
	defer tick.Stop()
	counter := l.counterOf(group)
	for i, from := 0, counter.Load(); i < looks && counter.Load() < from+int64(n); i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *load) transport(d *door, c *caller, h2 bool) *http.Transport {
	key := line{d.name, c.line, h2}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.lines[key]
	if t == nil {
		t = transport(c.tls, h2)
		l.lines[key] = t
	}
	return t
}

// choose returns a door that is ready. If none is, it returns one that is not away.
func (w *world) choose(n int) *door {
	ready := slices.DeleteFunc(slices.Clone(w.doors[:]), func(d *door) bool { return !d.ready.Load() })
	if len(ready) == 0 {
		ready = slices.DeleteFunc(slices.Clone(w.doors[:]), func(d *door) bool { return d.away.Load() })
	}
	return ready[n%len(ready)]
}
