//go:build !race

package h2

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Forwarding may allocate 4 times per request, with drivers and TLS: crypto/tls once for each
// record that it reads, the engine never. The rest is a margin for rare allocations.
func TestLaneAllocations(t *testing.T) {
	backend := startPeer(t, "backend")
	for _, kind := range []string{"portable", "loop"} {
		for _, s := range []shape{
			{name: "1x1", conns: 1, streams: 1, path: "/small", size: 1024, count: 2000},
			{name: "8x8", conns: 8, streams: 8, path: "/small", size: 1024, count: 4000},
		} {
			t.Run(kind+"/"+s.name, func(t *testing.T) {
				p := startPeer(t, kind+"="+backend.addr)
				conns := dialAll(t, p.addr, s.conns)
				must.Do(t, s.run(conns))
				before := p.usage(t, "")
				must.Do(t, s.run(conns))
				if n := float64(p.usage(t, "").Mallocs-before.Mallocs) / float64(s.count); n > 4 {
					t.Errorf("%.2f allocations per request", n)
				}
			})
		}
	}
}
