package health

import (
	"context"
	"net/http"
	"time"
)

// lightPatience is how long a light check may stay unanswered before the endpoint is probed. It decides nothing, so it may be short; and it has to be: the kernel
// sends no keep-alive while a question is under way, so that a host whose packets vanish may be asked just before the 2 s after which the kernel would have told, and
// is out within 2 s + 0.5 s + 0.25 s + 2 s (dialTimeout), where 5 are promised.
const lightPatience = 500 * time.Millisecond

// keep takes over a connection on which a claim has passed. Blocked in a read, it sees the process die at once; being replaced by that of the next
// round it never grows older than the time between two, which is less than servers' idle timeouts, so it needs no pings to live.
func (t *target) keep(conn *http.ClientConn) {
	t.unwatch()
	if t.prober.watched.Add(1) > int64(t.prober.config.MaxWatched) {
		t.prober.watched.Add(-1)
		closeConn(conn)
		return
	}
	t.watch = conn
	t.light = time.Now().Add(t.rest)
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil && !t.lost.Swap(true) {
			t.poke()
		}
	})
}

func (t *target) unwatch() {
	if t.watch == nil {
		return
	}
	t.watch.SetStateHook(nil) // before it is closed: our own end of it is no alarm
	closeConn(t.watch)
	t.watch, t.light = nil, time.Time{}
	t.prober.watched.Add(-1)
}

// check asks on the watched connection, which costs no dial and no handshake. It only ever leads to a probe: a pooled connection can hide an
// endpoint that takes no new ones, and a process that hangs keeps its connections open.
func (t *target) check(ctx context.Context) {
	err := t.checkOnce(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		t.unwatch()
		t.silent = true
		t.poke()
		return
	}
	t.light = t.light.Add(t.rest)
	if !t.light.Before(t.due) {
		t.light = time.Time{}
	}
}

func (t *target) checkOnce(ctx context.Context) error {
	c := t.next()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lightPatience)
	defer cancel()
	start := time.Now()
	var latency time.Duration
	send := func(r *http.Request) (*http.Response, error) {
		resp, err := t.watch.RoundTrip(r)
		latency = time.Since(start)
		return resp, err
	}
	if err := c.get(ctx, send); err != nil {
		return err
	}
	for _, c := range *t.claims.Load() {
		c.latency.probed(latency)
	}
	return t.watch.Err()
}

// next is a claim that does not fail, each in its turn. Nil: there is none.
func (t *target) next() *claim {
	claims := *t.claims.Load()
	for range claims {
		t.turn++
		if c := claims[t.turn%len(claims)]; c.failures == 0 {
			return c
		}
	}
	return nil
}
