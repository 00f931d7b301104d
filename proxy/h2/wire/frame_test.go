package wire

import (
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestNextFrame(t *testing.T) {
	const maxFrame = 100
	for _, tt := range []struct {
		name string
		h    http2.FrameHeader
		have int // bytes of the header received so far
		need int
		ok   bool
	}{
		{"nothing", http2.FrameHeader{Length: 5}, 0, 9, true},
		{"a part of the header", http2.FrameHeader{Length: maxFrame + 1}, 8, 9, true},
		{"a whole frame", http2.FrameHeader{Length: maxFrame, Type: http2.FrameHeaders, StreamID: 1<<31 - 1}, 9, 109, true},
		{"too large a frame", http2.FrameHeader{Length: maxFrame + 1, Type: http2.FrameHeaders}, 9, 110, false},
		{"DATA is not waited for", http2.FrameHeader{Length: maxFrame, Type: http2.FrameData, Flags: http2.FlagDataEndStream, StreamID: 3}, 9, 9, true},
		{"its padding's length is", http2.FrameHeader{Length: 1, Type: http2.FrameData, Flags: http2.FlagDataPadded, StreamID: 3}, 9, 10, true},
		{"where there is one", http2.FrameHeader{Type: http2.FrameData, Flags: http2.FlagDataPadded, StreamID: 3}, 9, 9, true},
		{"too much DATA", http2.FrameHeader{Length: 1<<24 - 1, Type: http2.FrameData}, 9, 9, false},
	} {
		b := AppendFrameHeader(nil, tt.h)
		b[5] |= 0x80 // reserved
		h, need, ok := NextFrame(b[:tt.have], maxFrame)
		if need != tt.need || ok != tt.ok || tt.have == FrameHeaderLen && h != tt.h {
			t.Errorf("%s: got %+v, need %d, %v", tt.name, h, need, ok)
		}
		PutFrameLength(b, 1<<16+2<<8+3)
		if h := parseFrameHeader(b); h.Length != 1<<16+2<<8+3 || h.StreamID != tt.h.StreamID {
			t.Errorf("%s: with another length: %+v", tt.name, h)
		}
	}
}

func TestWhole(t *testing.T) {
	frame := func(n int) []byte {
		return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), 0, 0, 0, 0, 0, 1}, make([]byte, n)...)
	}
	for _, tt := range []struct {
		frames []int
		first  string
		want   int
	}{
		{[]int{10, 20, 16380}, "", 48}, {[]int{100 << 10, 10}, "", 100<<10 + 9}, {[]int{16 << 10, 10}, "", 16<<10 + 9}, {[]int{10, 100 << 10}, "", 19},
		{[]int{10, 20}, http2.ClientPreface, 24 + 48},
	} {
		b := []byte(tt.first)
		for _, n := range tt.frames {
			b = append(b, frame(n)...)
		}
		check.Same(t, tt.want, Whole(b, 16<<10), "%d", tt.frames)
	}
}
