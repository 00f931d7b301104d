package engine

import (
	"testing"

	"golang.org/x/net/http2"
)

// Trailers that cross our reset of their stream must not end the connection.
func TestLateTrailersOfResetStream(t *testing.T) {
	r, c, b := posted(t)
	b.see()
	b.headers(1, false, ":status=200")
	b.rst(1, http2.ErrCodeInternal)
	c.want("HEADERS 1 :status=200", "RST 1 INTERNAL_ERROR")
	c.send(1, true, "x-late=1")
	c.want()
	c.get(3)
	b.see()
	c.rst(3, http2.ErrCodeCancel)
	b.headers(3, false, ":status=200") // a backend's head crosses a reset, too
	b.send(3, true, "x-late=1")
	c.get(5)
	b.see()
	b.respond(5, "fine")
	c.want(`HEADERS 5 :status=200`, `DATA 5 "fine" END`)
	r.clean()
}

// Peers may assume the default window until they have read our SETTINGS. With a smaller window, the
// data they send before that would be an error.
func TestWindowsAreNotBelowTheDefault(t *testing.T) {
	lim := defaultLimits()
	if lim.streamWindow < defaultWindow || lim.clientWindow < defaultWindow || lim.backendWindow < defaultWindow {
		t.Errorf("windows of %d, %d and %d bytes", lim.streamWindow, lim.clientWindow, lim.backendWindow)
	}
	r := newRig(t)
	c := r.peer(r.e.AcceptClient())
	c.to.WriteString(http2.ClientPreface)
	c.fr.WriteSettings()
	c.headers(1, false, ":method=POST", ":scheme=https", ":authority=a", ":path=/")
	for left := defaultWindow; left > 0; left -= minMaxFrame { // all sent before the peer reads our SETTINGS
		_ = c.fr.WriteData(1, left <= minMaxFrame, make([]byte, min(left, minMaxFrame)))
	}
	c.flush()
	c.wantClosed(false, "a client that uses the whole default window is cut off")
	r.backend(0).respond(1, "")
	r.clean()
}
