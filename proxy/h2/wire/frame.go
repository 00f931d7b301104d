// Package wire encodes and decodes HTTP/2: frames (RFC 9113 §4), HPACK (RFC 7541), rules for heads (RFC 9113 §8).
//
// It has no state of streams or connections beyond its arguments, does no I/O, and does not
// allocate for fields that repeat. Nothing in it is safe for concurrent use.
package wire

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// FrameHeaderLen is the length of a frame's header in bytes (RFC 9113 §4.1).
const FrameHeaderLen = 9

// AppendFrameHeader appends the encoded header to b.
func AppendFrameHeader(b []byte, h http2.FrameHeader) []byte {
	return append(b, byte(h.Length>>16), byte(h.Length>>8), byte(h.Length), byte(h.Type), byte(h.Flags),
		byte(h.StreamID>>24), byte(h.StreamID>>16), byte(h.StreamID>>8), byte(h.StreamID))
}

func parseFrameHeader(b []byte) http2.FrameHeader {
	_ = b[FrameHeaderLen-1]
	return http2.FrameHeader{
		Length:   uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]),
		Type:     http2.FrameType(b[3]),
		Flags:    http2.Flags(b[4]),
		StreamID: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31), // §4.1: the reserved bit is ignored
	}
}

// PutFrameLength overwrites the length in the frame header at the start of b.
func PutFrameLength(b []byte, length int) {
	b[0], b[1], b[2] = byte(length>>16), byte(length>>8), byte(length)
}

// NextFrame reads the header of the frame at the start of b. It returns how many bytes from the start of b are needed
// before the frame can be handled: the whole frame, except for DATA, whose content is forwarded as it comes. As long as
// b is shorter than need, h may be empty. It reports false if the frame is larger than maxFrame (§4.2).
func NextFrame(b []byte, maxFrame int) (h http2.FrameHeader, need int, ok bool) {
	if len(b) < FrameHeaderLen {
		return h, FrameHeaderLen, true
	}
	h, need = parseFrameHeader(b), FrameHeaderLen
	switch {
	case h.Type != http2.FrameData:
		need += int(h.Length)
	case h.Flags.Has(http2.FlagDataPadded) && h.Length > 0:
		need++
	}
	return h, need, int(h.Length) <= maxFrame
}

// Whole returns how many bytes of a client's output are whole frames, of at most that many together but for the first.
func Whole(b []byte, most int) int {
	n := 0
	if b[0] == http2.ClientPreface[0] { // as a frame's it would be 5 MiB
		n = len(http2.ClientPreface)
	}
	for next := n; len(b)-n >= FrameHeaderLen; n = next {
		next += FrameHeaderLen + int(parseFrameHeader(b[n:]).Length)
		if n > 0 && next > most {
			return n
		}
	}
	return len(b)
}
