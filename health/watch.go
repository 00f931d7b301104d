package health

import (
	"cmp"
	"context"
	"net/http"
	"time"
)

// lightPatience is how long a light check may stay unanswered before the endpoint is probed. It decides nothing, so it may be short; and it has to be: the kernel
// sends no keep-alive while a question is under way, so that a host whose packets vanish may be asked just before the 2 s after which the kernel would have told, and
// is out within 2 s + 0.5 s + 0.25 s + 2 s (dialTimeout), where 5 are promised.
const lightPatience = 500 * time.Millisecond

// keep takes over a connection on which a claim has passed, if it is of a later round than the one that is watched, and closes it if not. Blocked in a read, it sees the
// process die at once; being replaced by that of the next round it never grows older than the time between two, which is less than servers' idle timeouts, so it needs no
// pings to live.
func (t *target) keep(conn *http.ClientConn, round time.Time) {
	if conn == nil {
		return
	}
	if conn.Err() != nil || t.watch != nil && !round.After(t.watched) {
		closeConn(conn)
		return
	}
	t.unwatch()
	if t.prober.watched.Add(1) > int64(t.prober.config.MaxWatched) {
		t.prober.watched.Add(-1)
		closeConn(conn)
		return
	}
	t.watch, t.watched = conn, round
	t.light = t.prober.beat(time.Now().Add(t.rest))
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			t.note(&t.lost)
		}
	})
}

func (t *target) unwatch() {
	if t.watch == nil {
		return
	}
	t.watch.SetStateHook(nil) // before it is closed: our own end of it is no alarm
	closeConn(t.watch)
	t.watch = nil
	t.prober.watched.Add(-1)
}

// check asks on the watched connection, which costs no dial and no handshake. It only ever leads to a probe: a pooled connection can hide an
// endpoint that takes no new ones, and a process that hangs keeps its connections open.
func (t *target) check(ctx context.Context, now time.Time) {
	t.light = t.prober.beat(now.Add(t.rest))
	c, conn := t.inTurn(), t.watch
	if c == nil {
		return
	}
	t.light = time.Time{}
	t.rounds.Go(func() {
		latency, err := c.check(ctx, conn)
		t.hear(ctx, func() {
			switch {
			case t.watch != conn: // it was replaced, and closed amid the question
			case err != nil:
				t.unwatch()
				t.silent = true
			default:
				c.latency.probed(latency)
				t.light = t.prober.beat(time.Now().Add(t.rest))
			}
		})
	})
}

func (c *claim) check(ctx context.Context, conn *http.ClientConn) (latency time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, lightPatience)
	defer cancel()
	start := time.Now()
	err = c.get(ctx, func(r *http.Request) (*http.Response, error) {
		resp, err := conn.RoundTrip(r)
		latency = time.Since(start)
		return resp, err
	})
	return latency, cmp.Or(err, conn.Err())
}

// inTurn is a claim of which no probe knows better, each in its turn. Nil: there is none.
func (t *target) inTurn() *claim {
	claims := *t.claims.Load()
	for range claims {
		t.turn++
		if c := claims[t.turn%len(claims)]; c.failures == 0 && !c.asking {
			return c
		}
	}
	return nil
}
