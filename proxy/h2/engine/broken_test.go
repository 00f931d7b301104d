package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// A connection whose client breaks the protocol ends with the error code of RFC 9113.
func TestConnectionErrors(t *testing.T) {
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, n int) func(*peer) {
		return func(c *peer) { _ = c.fr.WriteRawFrame(kind, flags, id, make([]byte, n)) }
	}
	for _, tc := range []struct {
		name string
		do   func(c *peer)
		want string
	}{
		{"SETTINGS acknowledged", raw(http2.FrameSettings, http2.FlagSettingsAck, 0, 0), ""},
		{"SETTINGS acknowledged with content", raw(http2.FrameSettings, http2.FlagSettingsAck, 0, 6), "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"SETTINGS cut short", raw(http2.FrameSettings, 0, 0, 5), "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"SETTINGS on a stream", raw(http2.FrameSettings, 0, 1, 6), "GOAWAY 0 PROTOCOL_ERROR"},
		{"PING that is too short", raw(http2.FramePing, 0, 0, 7), "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"PING on a stream", raw(http2.FramePing, 0, 1, 8), "GOAWAY 0 PROTOCOL_ERROR"},
		{"answer to a PING that nobody sent", func(c *peer) { _ = c.fr.WritePing(true, [8]byte([]byte(drainPing))) }, ""},
		{"CONTINUATION of nothing", raw(http2.FrameContinuation, 0, 1, 0), "GOAWAY 0 PROTOCOL_ERROR"},
		{"CONTINUATION of another stream", func(c *peer) {
			_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
			_ = c.fr.WriteContinuation(3, false, nil)
		}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"PING amid a field block", func(c *peer) {
			_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
			_ = c.fr.WritePing(false, [8]byte{})
		}, "GOAWAY 0 PROTOCOL_ERROR"},
		// PRIORITY is ignored where it is valid (§6.3); otherwise it ends its stream, also an idle
		// one.
		{"PRIORITY cut short", raw(http2.FramePriority, 0, 1, 4), "RST 1 FRAME_SIZE_ERROR"},
		{"PRIORITY of a stream over itself", func(c *peer) { _ = c.fr.WriteRawFrame(http2.FramePriority, 0, 3, []byte{0, 0, 0, 3, 0}) }, "RST 3 PROTOCOL_ERROR"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, c := newClient(t)
			tc.do(c)
			c.flush()
			if got := strings.Join(c.see(), "|"); got != tc.want || c.c.closing != strings.HasPrefix(tc.want, "GOAWAY") {
				t.Errorf("%q, closed: %v, want %q", got, c.c.closing, tc.want)
			}
		})
	}
	r := newRig(t)
	c := r.peer(r.e.AcceptClient())
	r.feed(c.c, []byte(strings.Replace(http2.ClientPreface, "SM", "MS", 1)))
	c.wantClosed(true, "a connection with another preface is kept")
}

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
