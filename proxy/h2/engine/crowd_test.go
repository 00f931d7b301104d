package engine

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// crowd has clients send requests at once, on one connection each, while dials wait.
func (r *rig) crowd(clients int, each uint32) {
	r.heldDial = true
	for range clients {
		c := r.client()
		for i := range each {
			c.get(2*i + 1)
		}
	}
}

// When a replica stops, all its clients reconnect to another one at once, with all their watches.
// That must not become hundreds of handshakes: a busy backend would close some of the connections,
// each with a hundred watches.
func TestCrowdMakesFewDials(t *testing.T) {
	const clients, each, perConn = 20, 250, 1000
	r := newRig(t)
	r.crowd(clients, each)
	if n := len(r.held); n != maxDialing {
		t.Fatalf("%d dials at once for %d requests, want %d", n, clients*each, maxDialing)
	}
	dials := 0
	for ; len(r.held) > 0; dials++ {
		r.dialEnds(nil).takes(perConn)
	}
	// Some dials were in progress before the first backend sent its limit of streams, and one
	// replaced the first.
	if dials > maxDialing+1 {
		t.Errorf("%d dials although %d connections suffice, want %d", dials, clients*each/perConn, maxDialing+1)
	}
	sent := 0
	for _, b := range r.backends {
		sent += len(b.c.streams)
	}
	check.Same(t, clients*each, sent, "requests that were sent")
}

// A backend with few streams per connection still gets as many connections as it needs.
func TestCrowdOnSmallConnections(t *testing.T) {
	const clients, each, perConn = 4, 250, 10
	r := newRig(t)
	r.crowd(clients, each)
	sent := 0
	for len(r.held) > 0 {
		if n := len(r.held); n > maxDialing {
			t.Fatalf("%d dials at once", n)
		}
		b := r.dialEnds(nil)
		b.takes(perConn)
		sent += len(b.c.streams)
	}
	check.Same(t, clients*each, sent, "requests that were sent")
}
