package engine

import (
	"testing"
)

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
