package main

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frames follows one direction of an HTTP/2 connection.
type frames struct {
	head [frameHeader + resetCode]byte // of the present frame, and why it resets a stream
	n    int                           // bytes of head that have come
	skip int                           // bytes that are left of the frame, or come before the first
}

const (
	frameHeader = 9 // RFC 9113 §4.1
	resetCode   = 4 // §6.4
)

func (f *frames) kind() http2.FrameType { return http2.FrameType(f.head[3]) }
func (f *frames) flags() http2.Flags    { return http2.Flags(f.head[4]) }
func (f *frames) stream() uint32        { return binary.BigEndian.Uint32(f.head[5:]) &^ (1 << 31) }
func (f *frames) code() http2.ErrCode {
	return http2.ErrCode(binary.BigEndian.Uint32(f.head[frameHeader:]))
}

// begins reports whether the frame has part of a message: its flags are said in the same bits.
func (f *frames) begins() bool { return f.kind() == http2.FrameHeaders || f.kind() == http2.FrameData }

// follow calls see for each frame whose header ends in p; for one that resets a stream, when its code is there too.
func (f *frames) follow(p []byte, see func(*frames)) {
	for len(p) > 0 {
		if f.skip > 0 {
			k := min(f.skip, len(p))
			f.skip, p = f.skip-k, p[k:]
			continue
		}
		need := frameHeader
		if f.n >= frameHeader {
			need += resetCode
		}
		k := copy(f.head[f.n:need], p)
		f.n, p = f.n+k, p[k:]
		if f.n < need {
			continue
		}
		size := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		resets := f.kind() == http2.FrameRSTStream && size == resetCode // of another size it is an error, for whoever reads it
		if resets && need == frameHeader {
			continue
		}
		see(f)
		if f.n, f.skip = 0, size; resets {
			f.skip = 0
		}
	}
}
