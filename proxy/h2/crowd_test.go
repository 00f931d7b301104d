package h2

import (
	"testing"

	"golang.org/x/net/http2"
)

// All clients of a replica that went away come to another at once, with all their watches. That must not become hundreds of handshakes, which a backend
// that has little time to spare answers by giving connections up, each with a hundred watches on it.
func TestCrowdMakesFewDials(t *testing.T) {
	const clients, each, perConn = 20, 250, 1000
	r := newRig(t)
	r.heldDial = true
	for range clients {
		c := r.client()
		for i := range uint32(each) {
			c.get(2*i + 1)
		}
	}
	if n := len(r.held); n != maxDialing {
		t.Fatalf("%d dials at once for %d requests, want %d", n, clients*each, maxDialing)
	}
	dials := 0
	for ; len(r.held) > 0; dials++ {
		p := r.held[0]
		r.held = r.held[1:]
		b := r.peer(r.e.connected(p))
		r.backends = append(r.backends, b)
		b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: perConn})
		b.flush()
	}
	// Those that were under way before the first backend had said how many streams it takes, one in the place of the first, and no further ones.
	if dials > maxDialing+1 {
		t.Errorf("%d dials for what fits on %d connections, want %d", dials, clients*each/perConn, maxDialing+1)
	}
	sent := 0
	for _, b := range r.backends {
		sent += len(b.c.streams)
	}
	if sent != clients*each {
		t.Errorf("%d of %d requests were sent", sent, clients*each)
	}
}

// A backend that takes few streams on a connection still gets as many connections as it needs.
func TestCrowdOnSmallConnections(t *testing.T) {
	const clients, each, perConn = 4, 250, 10
	r := newRig(t)
	r.heldDial = true
	for range clients {
		c := r.client()
		for i := range uint32(each) {
			c.get(2*i + 1)
		}
	}
	sent := 0
	for len(r.held) > 0 {
		if n := len(r.held); n > maxDialing {
			t.Fatalf("%d dials at once", n)
		}
		p := r.held[0]
		r.held = r.held[1:]
		c := r.e.connected(p)
		b := r.peer(c)
		b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: perConn})
		b.flush()
		sent += len(c.streams)
	}
	if sent != clients*each {
		t.Errorf("%d of %d requests were sent", sent, clients*each)
	}
}
