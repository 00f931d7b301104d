package health

import (
	"cmp"
	"context"
	"net/http"
	"time"
)

// lightTimeout is how long a light check may stay unanswered before the endpoint is probed. It
// decides nothing, so it may be short. And it must be: the kernel sends no keep-alive while a
// request is under way, so a host whose packets vanish may get a light check just before the 2 s
// after which keep-alive would have failed. It is then ejected within 2 s + 0.5 s + 0.25 s + 2 s
// (dialTimeout), where 5 s are promised.
const lightTimeout = 500 * time.Millisecond

// keep takes over a connection on which a claim has passed, if its round is later than that of the
// watched one, and closes it if not. Blocked in a read, the connection sees the process die at
// once. The next round's connection replaces it, so it is never older than the time between two
// rounds, which is less than servers' idle timeouts: it needs no pings to live.
func (t *target) keep(conn *http.ClientConn, round time.Time) {
	if conn == nil {
		return
	}
	if t.watch != nil && !round.After(t.watched) {
		closeConn(conn)
		return
	}
	t.unwatch()
	if t.prober.watched.Add(1) > t.prober.most {
		t.prober.watched.Add(-1)
		closeConn(conn)
		return
	}
	t.watch, t.watched = conn, round
	t.light = t.prober.beat(time.Now().Add(t.rest))
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			t.set(&t.lost)
		}
	})
	if conn.Err() != nil { // it ended after its answer, before it was watched
		t.unwatch()
		t.set(&t.lost)
	}
}

func (t *target) unwatch() {
	if t.watch == nil {
		return
	}
	t.watch.SetStateHook(nil) // before closing: closing it ourselves is no alarm
	closeConn(t.watch)
	t.watch = nil
	t.prober.watched.Add(-1)
}

// check sends a request on the watched connection, which costs no dial and no handshake. It can
// only lead to a probe: an open connection can hide that an endpoint accepts no new ones, and a
// process that hangs keeps its connections open.
func (t *target) check(ctx context.Context, now time.Time) {
	t.light = t.prober.beat(now.Add(t.rest))
	c, conn := t.nextClaim(), t.watch
	if c == nil {
		return
	}
	t.light = time.Time{}
	t.rounds.Go(func() {
		latency, err := c.check(ctx, conn)
		t.deliver(ctx, func() {
			switch {
			case t.watch != conn: // it was replaced, and closed during the request
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
	ctx, cancel := context.WithTimeout(ctx, lightTimeout)
	defer cancel()
	start := time.Now()
	err = c.get(ctx, func(r *http.Request) (*http.Response, error) {
		resp, err := conn.RoundTrip(r)
		latency = time.Since(start)
		return resp, err
	})
	return latency, cmp.Or(inTime(err, latency, lightTimeout), conn.Err())
}

// nextClaim returns, in rotation, a claim that neither fails nor is being probed. Nil means none.
func (t *target) nextClaim() *claim {
	claims := *t.claims.Load()
	for range claims {
		t.turn++
		if c := claims[t.turn%len(claims)]; c.failures == 0 && !c.asking {
			return c
		}
	}
	return nil
}
