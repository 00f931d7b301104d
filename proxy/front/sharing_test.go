package front

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Of two ports at one address the older gets all connections until it hands over, and the newer from then on. A third
// one that leaves again gets none. Clients that connect all the time see nothing of it.
func TestHandOver(t *testing.T) {
	for host, at := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "::1", "0.0.0.0": "127.0.0.1", "::": "::1"} {
		probe, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
		if err != nil {
			t.Logf("a machine without IPv6: %v", err)
			continue
		}
		_ = probe.Close()
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			s, port := serve(t, 100, http.NotFoundHandler()), 0
			var by [3]atomic.Int64 // connections by who served them
			start := func(name int) (*Listener, *Port) {
				l := must.Get(Listen(t.Context(), Address{Host: host, Port: port, MaxConnections: 100, Shared: true, Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}}))(t)
				c := s.cfg
				c.Listener, c.TLS, c.Handler = l, c.TLS.Clone(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { by[name].Add(1) })
				c.TLS.NextProtos = nil // HTTP/1.1
				p := New(c)
				go func() { _ = p.Serve() }() // ends with Close
				t.Cleanup(func() { _ = p.Close() })
				port = l.Addr().(*net.TCPAddr).Port
				return l, p
			}
			a, first := start(0)
			check.Same(t, 0, a.HandOver(), "how long it must still accept, alone")
			var clients sync.WaitGroup
			var stop atomic.Bool
			defer clients.Wait()
			defer stop.Store(true)
			url := "https://" + net.JoinHostPort(at, fmt.Sprint(port))
			for range 4 {
				clients.Go(func() {
					for !stop.Load() {
						client := &http.Client{Transport: &http.Transport{TLSClientConfig: s.client.Clone(), DisableKeepAlives: true}}
						res, err := client.Get(url)
						if err != nil {
							t.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				})
			}
			// more waits until one has served more connections. Others have none, but for those between their listen(2)
			// and setsockopt(2).
			more := func(name int, others ...int) {
				begun, before := by[name].Load(), int64(0)
				for _, other := range others {
					before += by[other].Load()
				}
				must.Soon(t, 30*time.Second, fmt.Sprint("connections for ", name), func() bool { return by[name].Load() >= begun+100 || t.Failed() })
				for _, other := range others {
					before -= by[other].Load()
				}
				check.Same(t, true, before >= -5, "others got %d connections while %d got 100", -before, name)
			}
			b, second := start(1)
			more(0, 1)
			check.Same(t, settle, a.HandOver(), "how long the first must still accept")
			handed := time.Now()
			must.Soon(t, time.Minute, "that time is over", func() bool { return time.Since(handed) > settle })
			must.Do(t, first.Shutdown(t.Context(), 0))
			c, third := start(2)
			more(1, 0, 2)
			check.Same(t, 0, c.HandOver(), "how long the third must still accept")
			must.Do(t, third.Shutdown(t.Context(), 0))
			more(1, 0, 2)
			check.Same(t, 0, b.HandOver(), "how long the second must still accept, alone again")
			stop.Store(true)
			clients.Wait()
			_ = second.Close()
		})
	}
}
