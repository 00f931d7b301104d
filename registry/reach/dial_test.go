package reach

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// opened is a connection of a dial. It counts itself while it is open.
type opened struct {
	net.Conn
	by   int
	open *atomic.Int64
}

func (o *opened) Close() error { o.open.Add(-1); return nil }

// Of a name's addresses the first that answers is used, and one that has vanished costs a quarter
// of a second. The other dials end, and no other connection stays open.
func TestFirst(t *testing.T) {
	const ms, limit, never = time.Millisecond, 2 * time.Second, time.Hour
	type attempt struct {
		after time.Duration
		fails bool
	}
	for _, tt := range []struct {
		name     string
		attempts []attempt
		want     string
		took     time.Duration
	}{
		{"the first", []attempt{{after: 100 * ms}, {}}, "0", 100 * ms},
		{"the first, though it is slow", []attempt{{after: 300 * ms}, {after: 100 * ms}}, "0", 300 * ms},
		{"the first has vanished", []attempt{{after: never}, {after: 10 * ms}}, "1", attemptDelay + 10*ms},
		{"two have vanished", []attempt{{after: never}, {after: never}, {after: 10 * ms}}, "2", 2*attemptDelay + 10*ms},
		{"the first refuses", []attempt{{after: 5 * ms, fails: true}, {after: 10 * ms}}, "1", 15 * ms},
		{"one refuses, after one that has vanished", []attempt{{after: never}, {fails: true}, {after: 10 * ms}}, "2", attemptDelay + 10*ms},
		{"all have vanished", []attempt{{after: never}, {after: never}}, "0: context deadline exceeded", limit},
		{"all refuse", []attempt{{after: 300 * ms, fails: true}, {after: 10 * ms, fails: true}}, "0: refused", 300 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				var open, hanging atomic.Int64
				began := time.Now()
				c, err := first(ctx, len(tt.attempts), func(ctx context.Context, i int) (net.Conn, error) {
					switch a := tt.attempts[i]; {
					case a.after == never:
						hanging.Add(1)
						defer hanging.Add(-1)
						<-ctx.Done()
						return nil, fmt.Errorf("%d: %w", i, ctx.Err())
					case a.fails:
						<-time.After(a.after)
						return nil, fmt.Errorf("%d: refused", i)
					default:
						<-time.After(a.after) // it may come too late
						open.Add(1)
						return &opened{by: i, open: &open}, nil
					}
				})
				check.Same(t, tt.took, time.Since(began), "duration")
				synctest.Wait()
				check.Same(t, 0, hanging.Load(), "dials that go on")
				got := fmt.Sprint(err)
				if o, ok := c.(*opened); ok {
					got = fmt.Sprint(o.by)
					_ = o.Close()
				}
				check.Same(t, tt.want, got, "result")
				<-time.After(limit)
				check.Same(t, 0, open.Load(), "connections left")
			})
		})
	}
}
