package engine

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// When a replica stops, all its clients reconnect to another one at once, with all their watches.
// That must not become hundreds of handshakes: a busy backend would close some of the connections,
// each with a hundred watches. A backend with few streams per connection still gets as many
// connections as it needs.
func TestCrowd(t *testing.T) {
	for _, tt := range []struct{ clients, perConn, most int }{
		// Some dials are in progress before the first backend sends its limit of streams, and one
		// replaces the first.
		{20, 1000, maxDialing + 1},
		{4, 10, 4 * 250 / 10},
	} {
		const each = 250
		r := newRig(t)
		r.heldDial = true
		for range tt.clients {
			r.client().gets(1, 2*each-1)
		}
		check.Same(t, maxDialing, len(r.held), "dials at once")
		dials, sent := 0, 0
		for ; len(r.held) > 0; dials++ {
			if n := len(r.held); n > maxDialing {
				t.Fatalf("%d dials at once", n)
			}
			r.dialEnds(nil).takes(uint32(tt.perConn))
		}
		for _, b := range r.backends {
			sent += len(b.c.streams)
		}
		check.Same(t, tt.clients*each, sent, "requests that were sent")
		if dials > tt.most {
			t.Errorf("%d dials, %d streams each suffice: want at most %d", dials, tt.perConn, tt.most)
		}
	}
}
