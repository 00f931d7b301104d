package engine

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/budget"
)

// inFlight is the least that a frame on a stream that we have reset takes of what is owed: small ones mean fewer bytes.
const inFlight = 512

// priceData returns the cost of DATA with that much content for s, nil if the stream has ended. Some clients send
// bodies in pieces of a few bytes: windows bound them (not what nobody asked for), and turnHeads what is handled at
// once. For what a backend has sent before it sees our reset, that accounts: clients decide about it. While resets
// wait, it may use up its windows in frames of any size; to find a reset that waits for a stream's end has its price.
func (c *Conn) priceData(s *stream, content int) int {
	switch {
	case s != nil && content > 0 && (c.side == up || !s.noBody):
		return 0
	case s == nil && content > 0 && c.owed > 0 && !c.data.end:
		if c.owed -= content; len(c.late) == 0 {
			c.owed -= max(0, inFlight-content)
		}
		return 0
	}
	return budget.Frame
}

func (c *Conn) spend(n int) *connError {
	if !c.budget.Spend(n, c.e.now) {
		return &connError{http2.ErrCodeEnhanceYourCalm, "flood: too many frames, resets or bad requests"}
	}
	return nil
}

// costIdle is charged for a record without application data: TLS derives keys for an update and its answer. 500 at once
// and 100 a second are far above one in millions of records (RFC 8446 §5.5), and a server's two tickets.
const costIdle = 10

// IdleRecords charges for TLS records without application data.
func (e *Engine) IdleRecords(c *Conn, n int) {
	if err := c.spend(n * costIdle); err != nil {
		e.fail(c, err)
	}
}

// unwelcome charges for a request that was answered here with 401, which costs us a goroutine and an encoded Status, or
// with Plan.Answer. When the budget is exhausted, the client must reconnect: kube-apiserver closes a connection with
// the first 401. The other requests on the connection, which may be a proxy's, are still answered.
func (e *Engine) unwelcome(c *Conn) {
	const costUnwelcome = 60       // allows 90 at once and 20 a second, less the refund at the stream's end
	const kept = budget.Burst / 10 // for frames of the streams in flight, which the client sends at once
	if c.goAway == goAwayFinal {
		return
	}
	enough := c.spend(costUnwelcome+kept) == nil
	if c.budget.Earn(kept); enough {
		return
	}
	c.budget.Earn(kept)
	e.drainConn(c)
	if !c.closing {
		e.finalGoAway(c)
	}
}

func (e *Engine) settingsFrame(c *Conn, h http2.FrameHeader, p []byte) (err *connError) {
	switch {
	case h.StreamID != 0:
		err = &connError{http2.ErrCodeProtocol, "SETTINGS on a stream"}
	case h.Flags.Has(http2.FlagSettingsAck) && len(p) > 0:
		err = &connError{http2.ErrCodeFrameSize, "SETTINGS acknowledgement with content"}
	case len(p)%6 != 0:
		err = &connError{http2.ErrCodeFrameSize, "SETTINGS cut short"}
	default:
		err = c.spend(len(p) / 6)
	}
	if err != nil || h.Flags.Has(http2.FlagSettingsAck) {
		c.settingsAcked = c.settingsAcked || err == nil
		return err
	}
	window := c.peerWindow
	for ; len(p) > 0; p = p[6:] {
		id, value := http2.SettingID(binary.BigEndian.Uint16(p)), binary.BigEndian.Uint32(p[2:])
		if err := e.setting(c, id, value); err != nil {
			return err
		}
	}
	// The acknowledgement is sent first (§6.5.3): before it, the peer may still enforce its old
	// window. And it ends the last frame of DATA, which must not grow beyond the new frame size.
	c.frame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
	if c.peerWindow > window {
		for s := range c.ordered(all) {
			s.advance(1 - c.side)
		}
	}
	if p := c.pool; p != nil && !c.drained { // other connections will probably have the same
		p.perConn, p.known, p.failures = int(min(c.peerStreams, topStreamID)), true, 0
		p.serve()
	}
	return nil
}

// setting applies one of the peer's settings (§6.5.2).
func (e *Engine) setting(c *Conn, id http2.SettingID, v uint32) *connError {
	switch id {
	case http2.SettingHeaderTableSize:
		c.enc.SetTableSize(v)
	case http2.SettingEnablePush:
		if v > 1 || v == 1 && c.side == down {
			return &connError{http2.ErrCodeProtocol, "bad SETTINGS_ENABLE_PUSH"}
		}
	case http2.SettingMaxConcurrentStreams:
		c.peerStreams = v
	case http2.SettingInitialWindowSize:
		if v > maxWindow {
			return &connError{http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE too large"}
		}
		return e.newInitialWindow(c, int32(v))
	case http2.SettingMaxFrameSize:
		if v < minMaxFrame || v > maxMaxFrame {
			return &connError{http2.ErrCodeProtocol, "bad SETTINGS_MAX_FRAME_SIZE"}
		}
		c.peerFrame = min(int(v), largeFrame)
	case http2.SettingMaxHeaderListSize:
		c.peerHeaders = v
	}
	return nil
}

// newInitialWindow changes the windows of all streams by the difference, even below zero (§6.9.2).
func (e *Engine) newInitialWindow(c *Conn, v int32) *connError {
	diff := int64(v) - int64(c.peerWindow)
	c.peerWindow = v
	if diff == 0 {
		return nil
	}
	if err := c.spend(len(c.streams) / 4); err != nil { // it visits all streams, and each may send a byte
		return err
	}
	for _, s := range c.streams {
		h := &s.half[1-c.side]
		w := int64(h.window) + diff
		if w > maxWindow {
			return &connError{http2.ErrCodeFlowControl, "stream window above 2^31-1"}
		}
		h.window = int32(w)
	}
	return nil
}

func (e *Engine) pingFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	switch {
	case h.StreamID != 0:
		return &connError{http2.ErrCodeProtocol, "PING on a stream"}
	case len(p) != 8:
		return &connError{http2.ErrCodeFrameSize, "PING of a wrong size"}
	case h.Flags.Has(http2.FlagPingAck):
		if c.goAway == goAwaySoon && string(p) == drainPing {
			e.finalGoAway(c)
		}
		return nil
	}
	c.writePing(http2.FlagPingAck, p)
	return nil
}

func (e *Engine) priorityFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	code, why := http2.ErrCodeFrameSize, "PRIORITY of a wrong size"
	switch {
	case h.StreamID == 0:
		return &connError{http2.ErrCodeProtocol, "PRIORITY on stream 0"}
	case len(p) == 5 && binary.BigEndian.Uint32(p)&topStreamID != h.StreamID:
		return nil
	case len(p) == 5:
		code, why = http2.ErrCodeProtocol, "stream depends on itself"
	}
	if s := c.streams[h.StreamID]; s != nil { // §6.3: a stream error
		return s.violation(c.side, code, why)
	}
	c.writeReset(h.StreamID, code)
	return nil
}

func (e *Engine) windowFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	if len(p) != 4 {
		return &connError{http2.ErrCodeFrameSize, "WINDOW_UPDATE of a wrong size"}
	}
	n := int32(binary.BigEndian.Uint32(p) & maxWindow)
	if h.StreamID == 0 {
		if n == 0 {
			return &connError{http2.ErrCodeProtocol, "WINDOW_UPDATE of 0"}
		}
		if int64(c.window)+int64(n) > maxWindow {
			return &connError{http2.ErrCodeFlowControl, "connection window above 2^31-1"}
		}
		c.window += n
		c.chokedAt = 0
		e.pump(c)
		c.pool.serve()
		return nil
	}
	s := c.streams[h.StreamID]
	if s == nil {
		if c.idle(h.StreamID) {
			return &connError{http2.ErrCodeProtocol, "WINDOW_UPDATE on an idle stream"}
		}
		return nil // §5.1: allowed for a while after the stream was closed
	}
	d := 1 - c.side
	f := &s.half[d]
	switch {
	case n == 0:
		return s.violation(c.side, http2.ErrCodeProtocol, "WINDOW_UPDATE of 0")
	case int64(f.window)+int64(n) > maxWindow:
		return s.violation(c.side, http2.ErrCodeFlowControl, "stream window above 2^31-1")
	}
	f.window += n
	s.advance(d)
	return nil
}

func (e *Engine) resetFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	switch {
	case h.StreamID == 0:
		return &connError{http2.ErrCodeProtocol, "RST_STREAM on stream 0"}
	case len(p) != 4:
		return &connError{http2.ErrCodeFrameSize, "RST_STREAM of a wrong size"}
	case c.idle(h.StreamID):
		return &connError{http2.ErrCodeProtocol, "RST_STREAM on an idle stream"}
	}
	s := c.streams[h.StreamID]
	if s == nil {
		c.endsLate(h.StreamID, true)
		return nil
	}
	code := http2.ErrCode(binary.BigEndian.Uint32(p))
	if c.side == down {
		e.Count.reset(resetByBackend)
		s.backendReset(code)
		return nil
	}
	if s.half[down].sentEnd {
		s.unlinkLeg(up) // the request was answered, and the client stops its upload, like Go's client
		s.reset(down, http2.ErrCodeCancel)
		s.endIfDone()
		return nil
	}
	e.Count.reset(resetByClient)
	var err *connError
	if s.plan.LongRunning && (s.waited > 0 && s.plan.Forward != nil || e.now-s.started >= suspectTime) {
		c.budget.Earn(budget.Completed) // a watch has no other end; some servers answer it with the first event
	} else {
		err = c.spend(budget.Reset) // a cancelled request is work, a handler's watch even a handshake (CVE-2023-44487)
	}
	s.unlinkLeg(up)
	s.abort(ReasonClientReset, fmt.Errorf("client reset the stream: %v", code), http2.ErrCodeCancel)
	return err
}

// fail closes a connection for a connection error (§5.4.1): it is closed when GOAWAY is written.
func (e *Engine) fail(c *Conn, err *connError) {
	if c.closing {
		return
	}
	if err.code == http2.ErrCodeEnhanceYourCalm {
		e.Count.Floods.Add(1)
	}
	last := c.maxID
	if c.side == down {
		last = 0 // the backend's streams would be pushes
	}
	c.writeGoAway(last, err.code, err.why)
	e.close(c, err)
}

// idle reports whether a stream was never opened (§5.1).
func (c *Conn) idle(id uint32) bool { return id%2 == 0 || id > c.maxID && !c.ignores(id) }

// ignores reports whether GOAWAY told the client that the stream is not handled (§6.8). maxID stays what it said then:
// a later GOAWAY must not name a higher stream, which the client may have sent again elsewhere.
func (c *Conn) ignores(id uint32) bool { return c.goAway == goAwayFinal && id > c.maxID }
