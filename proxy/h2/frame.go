package h2

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

const (
	frameHeaderLen = 9       // RFC 9113 §4.1
	minMaxFrame    = 1 << 14 // §4.2: the size every endpoint accepts
	maxMaxFrame    = 1<<24 - 1
	maxWindow      = 1<<31 - 1 // §6.9.1
	defaultWindow  = 65535     // §6.9.2: what a peer may assume until it has seen SETTINGS
	topStreamID    = 1<<31 - 1 // §5.1.1
)

// frameHeader is RFC 9113 §4.1.
type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	id     uint32
}

func (h frameHeader) has(f http2.Flags) bool { return h.flags&f != 0 }

func parseFrameHeader(b []byte) frameHeader {
	_ = b[frameHeaderLen-1]
	return frameHeader{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   http2.FrameType(b[3]),
		flags:  http2.Flags(b[4]),
		id:     binary.BigEndian.Uint32(b[5:]) & topStreamID, // §4.1: the reserved bit is ignored
	}
}

func appendFrameHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// putFrameLength overwrites the length of the frame whose header starts b.
func putFrameLength(b []byte, length int) {
	b[0], b[1], b[2] = byte(length>>16), byte(length>>8), byte(length)
}

// needed says how many bytes from the start of b, which begins with a frame, must be there before the frame can be handled:
// the whole frame, but of DATA only what precedes its bytes, which are forwarded as they come.
func needed(b []byte, maxFrame int) (int, *connError) {
	if len(b) < frameHeaderLen {
		return frameHeaderLen, nil
	}
	h := parseFrameHeader(b)
	if h.length > maxFrame {
		return 0, &connError{http2.ErrCodeFrameSize, "frame larger than our SETTINGS_MAX_FRAME_SIZE"} // §4.2
	}
	if h.kind != http2.FrameData {
		return frameHeaderLen + h.length, nil
	}
	if h.has(http2.FlagDataPadded) && h.length > 0 {
		return frameHeaderLen + 1, nil
	}
	return frameHeaderLen, nil
}

// unpad removes the padding of a HEADERS payload (§6.2).
func unpad(h frameHeader, p []byte) ([]byte, *connError) {
	if !h.has(http2.FlagHeadersPadded) {
		return p, nil
	}
	if len(p) == 0 {
		return nil, &connError{http2.ErrCodeFrameSize, "padded frame without a pad length"}
	}
	n := int(p[0])
	if n >= len(p) {
		return nil, &connError{http2.ErrCodeProtocol, "padding as long as the frame"}
	}
	return p[1 : len(p)-n], nil
}

// connError is a reason to close a whole connection (RFC 9113 §5.4.1).
type connError struct {
	code http2.ErrCode
	why  string
}

func (e *connError) Error() string {
	return fmt.Sprintf("http2 connection error %v: %s", e.code, e.why)
}
