package engine

import (
	"encoding/binary"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

const (
	// turnHeads is how many of a client's field blocks are handled in one turn: about half a millisecond under the
	// mutex. Sixteen connections may each send 250 requests at once; others' requests are served after 64 of each.
	turnHeads  = 64
	headFrames = 32      // so many frames of DATA, which may have a byte each, take as long as a head
	usualHead  = 4 << 10 // a longer block counts as so many heads: one of 1 MiB takes milliseconds
	smallFrame = 1 << 10 // the largest buffer kept for the next frame in two parts: most control frames and heads fit
)

// Feed handles bytes that came in on c. It returns the bytes that are left for another turn, with
// which the next input must begin. The input may be split anywhere.
func (e *Engine) Feed(c *Conn, p []byte) []byte {
	defer e.rescue(c)
	c.lastRead = e.now
	c.bytesIn += int64(len(p) - c.left)
	c.left = 0
	c.pingAt = 0
	if c.preface > 0 {
		want := http2.ClientPreface[len(http2.ClientPreface)-c.preface:]
		n := min(len(want), len(p))
		if string(p[:n]) != want[:n] {
			e.fail(c, &connError{http2.ErrCodeProtocol, "bad client preface"})
			return nil
		}
		c.preface -= n
		p = p[n:]
	}
	for c.turn = 0; len(p) > 0 && !c.closing && c.turn < turnHeads*headFrames; {
		if c.data.on {
			p = e.feedData(c, p)
			continue
		}
		n, err := e.feedFrame(c, p)
		if err != nil {
			e.fail(c, err)
			break
		}
		p = p[n:]
	}
	if c.closing || len(p) == 0 {
		p = nil // an idle connection holds no buffer
	}
	c.left = len(p)
	c.weigh()
	return p
}

// feedFrame handles the frame at the start of p, or the rest of one, and returns how many bytes of
// p it used. An incomplete frame is kept in c.in.
func (e *Engine) feedFrame(c *Conn, p []byte) (int, *connError) {
	if len(c.in) == 0 {
		h, need, ok := wire.NextFrame(p, c.side.maxFrame())
		if !ok {
			return 0, errFrameTooLarge
		}
		if len(p) >= need {
			return need, e.handle(c, h, p[wire.FrameHeaderLen:need])
		}
	}
	taken := 0
	for { // twice, because only the header has the length
		h, need, ok := wire.NextFrame(c.in, c.side.maxFrame())
		if !ok {
			return 0, errFrameTooLarge
		}
		if len(c.in) == need {
			b := c.in
			c.in = nil // an idle connection holds no buffer
			err := e.handle(c, h, b[wire.FrameHeaderLen:])
			if cap(b) <= smallFrame && !c.closing {
				c.in = b[:0]
			}
			return taken, err
		}
		n := min(need-len(c.in), len(p)-taken)
		if n == 0 {
			return taken, nil
		}
		c.in = append(c.in, p[taken:taken+n]...)
		taken += n
	}
}

var errFrameTooLarge = &connError{http2.ErrCodeFrameSize, "frame larger than our SETTINGS_MAX_FRAME_SIZE"} // §4.2

// handle handles a whole frame, or the beginning of a DATA frame.
func (e *Engine) handle(c *Conn, h http2.FrameHeader, p []byte) *connError {
	if !c.started {
		if h.Type != http2.FrameSettings || h.Flags.Has(http2.FlagSettingsAck) { // §3.4
			return &connError{http2.ErrCodeProtocol, "first frame is not SETTINGS"}
		}
		c.started = true
	}
	if c.blockID != 0 && (h.Type != http2.FrameContinuation || h.StreamID != c.blockID) { // §6.10
		return &connError{http2.ErrCodeProtocol, "field block interrupted"}
	}
	if h.StreamID != 0 {
		e.work.frames++
		c.asked = 0
	}
	if h.Type != http2.FrameData { // whose price depends on its stream
		if err := c.spend(budget.Frame); err != nil {
			return err
		}
	}
	switch h.Type {
	case http2.FrameData:
		return e.dataBegin(c, h, p)
	case http2.FrameHeaders:
		return e.headersFrame(c, h, p)
	case http2.FrameContinuation:
		return e.continuationFrame(c, h, p)
	case http2.FrameRSTStream:
		return e.resetFrame(c, h, p)
	case http2.FrameSettings:
		return e.settingsFrame(c, h, p)
	case http2.FramePing:
		return e.pingFrame(c, h, p)
	case http2.FrameGoAway:
		return e.goAwayFrame(c, h, p)
	case http2.FrameWindowUpdate:
		return e.windowFrame(c, h, p)
	case http2.FramePriority:
		return e.priorityFrame(c, h, p)
	case http2.FramePushPromise: // not allowed for clients, and disabled for backends (§8.4)
		return &connError{http2.ErrCodeProtocol, "PUSH_PROMISE"}
	}
	return nil // §4.1: unknown types are ignored
}

// dataBegin accounts for a DATA frame; p has the pad length, if it is padded. Its content follows through feedData.
func (e *Engine) dataBegin(c *Conn, h http2.FrameHeader, p []byte) *connError {
	if h.StreamID == 0 {
		return &connError{http2.ErrCodeProtocol, "DATA on stream 0"}
	}
	before, after, err := padding(h, p)
	if err != nil {
		return err
	}
	content := int(h.Length) - before - after
	if int64(h.Length) > int64(c.recv) {
		return &connError{http2.ErrCodeFlowControl, "connection window exceeded"}
	}
	c.turn++
	c.recv -= int32(h.Length)
	// The connection's credit is returned on receipt: one stuck stream must not stop the others (RFC 9113 §5.2.2). The
	// streams' windows bound what waits. DATA of ended streams is credited, too.
	c.credit += int32(h.Length)
	c.received(int32(h.Length))
	c.giveCredit()
	end := h.Flags.Has(http2.FlagDataEndStream)
	c.data = dataFrame{id: h.StreamID, left: content, pad: after, end: end, on: true}
	s := c.streams[h.StreamID]
	if err := c.spend(c.priceData(s, content)); err != nil {
		return err
	}
	if s == nil {
		if err := e.dataOnNothing(c, h); err != nil {
			return err
		}
	} else if err := e.dataOnStream(c, s, h, int(h.Length)-content); err != nil {
		return err
	}
	if content+after == 0 {
		e.feedData(c, nil)
	}
	return nil
}

// dataOnNothing handles DATA on a stream that does not exist.
func (e *Engine) dataOnNothing(c *Conn, h http2.FrameHeader) *connError {
	if c.idle(h.StreamID) {
		return &connError{http2.ErrCodeProtocol, "DATA on an idle stream"} // §5.1
	}
	if c.side == down && h.Flags.Has(http2.FlagDataEndStream) {
		c.endsLate(h.StreamID, false)
	}
	if c.side == down || c.wasReset(h.StreamID) || c.ignores(h.StreamID) {
		return nil
	}
	c.writeReset(h.StreamID, http2.ErrCodeStreamClosed) // §5.1, closed
	return c.spend(budget.Reset)
}

// dataOnStream checks a DATA frame against its stream; extra bytes of the frame are padding.
func (e *Engine) dataOnStream(c *Conn, s *stream, h http2.FrameHeader, extra int) *connError {
	d := c.side
	f := &s.half[d]
	switch {
	case f.end:
		return s.violation(d, http2.ErrCodeStreamClosed, "DATA after END_STREAM")
	case int64(h.Length) > int64(f.recv):
		return s.violation(d, http2.ErrCodeFlowControl, "stream window exceeded")
	case d == down && s.waited == 0:
		return s.violation(d, http2.ErrCodeProtocol, "DATA before HEADERS")
	}
	f.recv -= int32(h.Length)
	c.streamReceived(h.StreamID, f, int32(h.Length))
	if extra > 0 {
		s.giveStreamCredit(d, extra)
	}
	return nil
}

// feedData forwards content of the DATA frame that is being received, and skips its padding.
func (e *Engine) feedData(c *Conn, p []byte) []byte {
	n := min(c.data.left, len(p))
	body := p[:n]
	p = p[n:]
	c.data.left -= n
	end := false
	if c.data.left == 0 {
		// END_STREAM takes effect here: the rest of the frame is padding.
		end, c.data.end = c.data.end, false
		k := min(c.data.pad, len(p))
		c.data.pad -= k
		p = p[k:]
		c.data.on = c.data.pad > 0
	}
	if s := c.streams[c.data.id]; s != nil && (n > 0 || end) {
		e.body(c, s, body, end)
	}
	return p
}

// body accepts content of a message, and checks it against content-length (§8.1.1).
func (e *Engine) body(c *Conn, s *stream, p []byte, end bool) {
	d := c.side
	f := &s.half[d]
	f.got += int64(len(p))
	switch {
	case d == down && s.noBody: // some servers send content all the same: to HEAD, or "null" with 204
		s.giveStreamCredit(d, len(p))
		p = nil
	case f.declared >= 0 && (f.got > f.declared || end && f.got != f.declared):
		if err := s.violation(d, http2.ErrCodeProtocol, "content-length does not match"); err != nil {
			e.fail(c, err)
		}
		return
	}
	if d == down && len(p) > 0 {
		s.event, s.newline = e.now, p[len(p)-1] == '\n'
	}
	s.push(d, p, end)
}

func (e *Engine) headersFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	if h.StreamID == 0 || h.StreamID%2 == 0 { // §5.1.1: clients use odd ids, and pushes are disabled
		return &connError{http2.ErrCodeProtocol, "HEADERS on stream 0 or an even stream"}
	}
	before, after, err := padding(h, p)
	if err != nil {
		return err
	}
	p = p[before : len(p)-after]
	selfDependent := false
	if h.Flags.Has(http2.FlagHeadersPriority) {
		if len(p) < 5 {
			return &connError{http2.ErrCodeFrameSize, "priority cut short"}
		}
		selfDependent = binary.BigEndian.Uint32(p)&topStreamID == h.StreamID
		p = p[5:]
	}
	c.blockES = h.Flags.Has(http2.FlagHeadersEndStream)
	c.blockID = h.StreamID
	if h.Flags.Has(http2.FlagHeadersEndHeaders) {
		return e.fieldBlock(c, p, selfDependent)
	}
	c.blockAt = e.now
	c.block = append(c.block, p...)
	return nil
}

// continuationFrame adds to a field block, which could be endless (CVE-2024-27316): bounded, and each frame is charged.
func (e *Engine) continuationFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	if c.blockID == 0 {
		return &connError{http2.ErrCodeProtocol, "CONTINUATION without HEADERS"}
	}
	if len(c.block)+len(p) > e.headLimit(c.side) || c.crowded(len(p)) {
		return &connError{http2.ErrCodeEnhanceYourCalm, "field block too large"}
	}
	// A block that outgrows its own buffer takes the kept one, from an eighth of its size on and if it has room: a peer
	// holds what it has sent, not what another one sent before.
	n := len(c.block) + len(p)
	if n > cap(c.block) && n <= cap(e.block) && cap(e.block) <= 8*n && !c.crowded(cap(e.block)) {
		c.block, e.block = append(e.block[:0], c.block...), nil
	}
	c.block = append(c.block, p...)
	if !h.Flags.Has(http2.FlagContinuationEndHeaders) {
		return nil
	}
	err := e.fieldBlock(c, c.block, false)
	e.freeBlock(c)
	return err
}

// freeBlock keeps a field block's buffer for the next one: a few of 1 MiB would be collected several times a second.
func (e *Engine) freeBlock(c *Conn) {
	if cap(c.block) > cap(e.block) {
		e.block = c.block
	}
	c.block = nil
}

// fieldBlock decodes a field block, needed or not, because later ones refer to the resulting table (RFC 7541 §2.2).
func (e *Engine) fieldBlock(c *Conn, block []byte, selfDependent bool) *connError {
	id := c.blockID
	c.blockID = 0
	// A section much larger than its block is charged: for decoding it, and for its memory where it is forwarded. What
	// can be seen before it is decoded is charged before.
	const unit = 256 // a budget allows 1.2 MiB at once, and 256 KiB a second
	cost := e.fields.Least(block) / unit
	if err := c.spend(cost); err != nil {
		return err
	}
	if err := e.fields.Decode(c.dec, block); err != nil {
		return &connError{http2.ErrCodeCompression, err.Error()}
	}
	cost = max(0, e.fields.Excess()/unit-cost)
	if e.fields.TooLarge() && c.side == up {
		cost += budget.Refused
	}
	if err := c.spend(cost); err != nil {
		return err
	}
	c.turn += len(block) / usualHead * headFrames
	if c.side == up {
		c.turn += headFrames
		return e.requestBlock(c, id, selfDependent)
	}
	return e.responseBlock(c, id)
}
