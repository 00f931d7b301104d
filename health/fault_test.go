package health

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A name that cannot be resolved is not tried ten times a second, as an address would be: that
// would load DNS servers.
func TestUnknownNamesAreNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		b := startBench(t, newAuthority(serverName), []*registry.Entry{entry(at)}, func(c *Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				asked.Add(1)
				return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}
			}
		})
		b.run(t)
		pass(time.Minute)
		before := asked.Load()
		pass(time.Minute)
		if n := asked.Load() - before; n < 10 || n > 15 {
			t.Errorf("resolved %d times in a minute, want once in 5 s", n)
		}
	})
}

// If a server closes the connection for one group-version, the others of its endpoint stay healthy.
func TestLostConnectionIsTheFaultOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ca := newAuthority(serverName)
		b := startBench(t, ca, family(5, false, at))
		ill := b.feed.entries[2]
		b.cable.host(at).serveAs(t, ca, &http.Server{
			ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
			Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == pathOf(ill) {
					_ = r.Context().Value(key{}).(net.Conn).Close() //nolint:forcetypeassert // as above
				}
				lasts(r, 10*time.Millisecond)
			}),
		})
		b.run(t)
		pass(time.Minute)
		reports := b.notes.all()
		for _, r := range reports {
			if (r.Health == registry.Healthy) != (r.Name != ill.Name) {
				t.Errorf("%+v", r)
			}
		}
		if len(reports) != 5 {
			t.Errorf("%d reports, want one for each APIService", len(reports))
		}
	})
}
