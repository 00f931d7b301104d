package engine

import (
	"testing"
)

// The first write to a new connection contains a request.
func TestFirstWriteHasRequest(t *testing.T) {
	r, c := newClient(t)
	r.heldDial = true
	c.get(1)
	if b := r.held[0].dialled(nil); len(b.streams) != 1 {
		t.Errorf("%d requests are sent on a new connection", len(b.streams))
	}
}

// A failed dial fails no request while another dial is in progress.
func TestOneOfTwoDialsFails(t *testing.T) {
	r := newRig(t)
	r.heldDial = true
	c := r.client()
	for id := uint32(1); id < 2*(assumedStreams+2); id += 2 {
		c.get(id)
	}
	if len(r.held) != 2 {
		t.Fatalf("%d dials", len(r.held))
	}
	r.held[0].dialled(errRefused)
	r.run()
	c.want()
	r.dialled(r.held[1])
	r.backend(0).takes(2 * assumedStreams)
	if n := r.e.pool(r.ep).waiting.n; n > 0 || len(r.outcomes) > 0 {
		t.Errorf("%d requests wait, %d have ended", n, len(r.outcomes))
	}
}
