// Package wire is HTTP/2 as bytes: frames (RFC 9113 §4), HPACK (RFC 7541), and what the heads of messages may say (RFC 9113 §8).
//
// It knows nothing of streams or connections beyond what it is handed, does no I/O, and allocates nothing for what comes again. Nothing
// of it is safe for concurrent use.
package wire

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// FrameHeaderLen is how many bytes a frame has before its payload (RFC 9113 §4.1).
const FrameHeaderLen = 9

// FrameHeader is RFC 9113 §4.1.
type FrameHeader struct {
	Length   int             // of the payload
	Type     http2.FrameType // of which unknown ones are ignored
	Flags    http2.Flags     // whose meaning depends on the type
	StreamID uint32          // 0: the connection
}

// Has reports whether one of the flags is set.
func (h FrameHeader) Has(f http2.Flags) bool { return h.Flags&f != 0 }

// Append writes the header.
func (h FrameHeader) Append(b []byte) []byte {
	return append(b, byte(h.Length>>16), byte(h.Length>>8), byte(h.Length), byte(h.Type), byte(h.Flags),
		byte(h.StreamID>>24), byte(h.StreamID>>16), byte(h.StreamID>>8), byte(h.StreamID))
}

func parseFrameHeader(b []byte) FrameHeader {
	_ = b[FrameHeaderLen-1]
	return FrameHeader{
		Length:   int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		Type:     http2.FrameType(b[3]),
		Flags:    http2.Flags(b[4]),
		StreamID: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31), // §4.1: the reserved bit is ignored
	}
}

// PutFrameLength overwrites the length of the frame whose header starts b.
func PutFrameLength(b []byte, length int) {
	b[0], b[1], b[2] = byte(length>>16), byte(length>>8), byte(length)
}

// NextFrame reads the header of the frame that b begins with, and says how many bytes from the start of b must be there before the
// frame can be handled: the whole frame, but of DATA only what precedes its bytes, which are forwarded as they come. Until need bytes
// are there h may be empty. False: the frame is larger than maxFrame (§4.2).
func NextFrame(b []byte, maxFrame int) (h FrameHeader, need int, ok bool) {
	if len(b) < FrameHeaderLen {
		return h, FrameHeaderLen, true
	}
	h = parseFrameHeader(b)
	switch {
	case h.Type != http2.FrameData:
		need = FrameHeaderLen + h.Length
	case h.Has(http2.FlagDataPadded) && h.Length > 0:
		need = FrameHeaderLen + 1
	default:
		need = FrameHeaderLen
	}
	return h, need, h.Length <= maxFrame
}
