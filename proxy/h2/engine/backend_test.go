package engine

import "testing"

// The body that is kept for a retry counts against its client until the response begins.
func TestAnsweredRequestIsNotHeld(t *testing.T) {
	r := newRig(t)
	r.plan.Retries = 1
	c := r.client()
	c.request(1, "POST", false)
	c.upload(1, 2*chunkSize)
	b := r.backend(0)
	if c.c.queued < 2*chunkSize {
		t.Fatalf("%d bytes are held", c.c.queued)
	}
	b.send(1, false, ":status=200")
	if c.c.queued != 0 {
		t.Errorf("%d bytes are held although nothing can be sent again", c.c.queued)
	}
}
