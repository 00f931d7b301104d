package front

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Beyond the share of its address a connection waits until one of the address leaves, or no other place is left.
func TestSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Listener{places: make(chan struct{}, 64), crowded: make(chan struct{}), seats: bound.Places{Lend: true}, stalls: prometheus.NewCounter(prometheus.CounterOpts{})}
		come := func() (*placed, <-chan bool) {
			l.places <- struct{}{}
			ours, _ := net.Pipe()
			c, seated := &placed{Conn: ours, leave: func() { <-l.places }}, make(chan bool, 1)
			go func() { seated <- l.seat(t.Context(), c, &plain{from: bound.Source{Address: "192.0.2.1"}}) }()
			time.Sleep(time.Second)
			return c, seated
		}
		var last *placed
		for range 62 {
			c, seated := come()
			check.Same(t, true, <-seated, "within the share")
			last = c
		}
		_, served := come()
		check.Same(t, 0, len(served), "served, or closed, while another waits")
		last.leave()
		check.Same(t, true, <-served, "served when another has left")
		_, closed := come()
		l.places <- struct{}{} // another's
		must.Do(t, l.wait())
		check.Same(t, false, <-closed, "served when no place is left")
		check.Same(t, 2, testutil.ToFloat64(l.stalls), "connections that waited")
	})
}
