package wire

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// FuzzRequestBlock compares our validation of a field block with x/net's: everything we accept, it must accept.
func FuzzRequestBlock(f *testing.F) {
	get := []hpack.HeaderField{field(":method", "GET"), field(":scheme", "https"), field(":authority", "a"), field(":path", "/?a=b")}
	more := []hpack.HeaderField{field("te", "trailers"), field("x-a", "1"), field("content-length", "0"), field("cookie", "a")}
	f.Add(NewEncoder().Append(nil, get))
	f.Add(NewEncoder().Append(nil, get, more))
	f.Add(NewEncoder().Append(nil, get, more[1:], []hpack.HeaderField{field("connection", "x")}))
	f.Fuzz(func(t *testing.T, block []byte) {
		s := FieldSection{Max: 256 << 10}
		if s.Decode(s.NewDecoder(), block) != nil {
			return
		}
		fields := slices.Clone(s.fields)
		var h Head
		if s.Request(&h) != nil {
			return
		}
		var buf bytes.Buffer
		enc := hpack.NewEncoder(&buf)
		for _, hf := range fields {
			hf.Value = trim(hf.Value)
			_ = enc.WriteField(hf)
		}
		var sent bytes.Buffer
		fr := http2.NewFramer(&sent, &sent)
		fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		fr.SetMaxReadFrameSize(1<<24 - 1)
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: buf.Bytes(), EndHeaders: true})
		check.Is(t, nil, check.Err(fr.ReadFrame()), "x/net refuses what we accept: %q", fields)
		for _, hf := range h.Fields {
			check.Same(t, true, validName(hf.Name) && validValue(hf.Value) && !ConnectionSpecific(hf.Name) && hf.Name != "host", "forwarded field %q", hf)
		}
	})
}

func TestValidValue(t *testing.T) {
	for b := range 256 {
		want := b >= ' ' && b != 0x7f || b == '\t'
		for at := range 20 {
			s := []byte("some value of twenty")
			s[at] = byte(b)
			check.Same(t, want, validValue(string(s)), "validValue(%q)", s)
		}
	}
	check.Same(t, [3]bool{false, false, true}, [3]bool{validValue("tab\tthen\x01bell "), validValue("\x7f"), validValue("")}, "validValue of short ones")
}

// Names are tokens in lower case, methods are tokens in any case (RFC 9110 §5.6.2, RFC 9113 §8.2.1).
func TestTokens(t *testing.T) {
	for b := range 256 {
		name := strings.IndexByte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz", byte(b)) >= 0
		s := string([]byte{'a', byte(b), 'c'})
		check.Same(t, name, validName(s), "validName(%q)", s)
		check.Same(t, name || 'A' <= b && b <= 'Z', (&Head{Method: s}).Valid(), "method %q", s)
	}
	check.Same(t, false, validName("") || new(Head).Valid(), "an empty token is accepted")
	long := strings.Repeat("a", 1<<10) // whose quoting would take longer than reading it
	for _, odd := range []hpack.HeaderField{field(":"+long, ""), field("A"+long, ""), field(long, "\x01")} {
		s := FieldSection{fields: []hpack.HeaderField{field(":method", "GET"), field(":scheme", "https"), field(":path", "/"), odd}}
		err := s.Request(new(Head))
		check.Same(t, true, err != nil && len(err.Error()) <= 256, "refused by %v", err)
	}
}

// A Content-Length may be repeated if it is the same, also if it is 0.
func TestLengths(t *testing.T) {
	for _, tt := range []struct {
		have      int64
		digits    string
		again, ok bool
	}{{-1, "0", false, true}, {-1, "7", false, true}, {0, "0", true, true}, {0, "7", false, false}, {7, "7", true, true}, {7, "0", false, false}, {-1, "+7", false, false}, {-1, "9223372036854775807", false, true}} {
		to := tt.have
		again, err := setLength(&to, tt.digits)
		check.Same(t, [2]bool{tt.again, tt.ok}, [2]bool{again, err == nil}, "%d and then %s: again, and accepted", tt.have, tt.digits)
	}
}

func TestResponseValuesAreTrimmed(t *testing.T) {
	s := FieldSection{fields: []hpack.HeaderField{field(":status", "200"), field("x-a", "\tb "), field("content-length", " 7")}}
	want := ResponseHead{Status: 200, ContentLength: 7, Fields: []hpack.HeaderField{field("x-a", "b"), field("content-length", "7")}}
	check.Same(t, want, must.Get(s.Response())(t), "response")
}

// A section has so many names, and so many fields. Consecutive fields of one name count as one
// name, and pseudo-fields as none.
func TestManyNames(t *testing.T) {
	block := func(n, each int) []byte {
		fields := []hpack.HeaderField{field(":method", "GET"), field(":path", "/")}
		for i := range n * each {
			fields = append(fields, field("x-"+string(rune('a'+i/each%2)), "1"))
		}
		return NewEncoder().Append(nil, fields)
	}
	s := FieldSection{Max: 1 << 20}
	for _, tt := range []struct {
		n, each int
		over    bool
	}{{MaxNames, 1, false}, {MaxNames + 1, 1, true}, {MaxNames, 3, false}, {1, MaxFields - 2, false}, {1, MaxFields - 1, true}} {
		must.Do(t, s.Decode(s.NewDecoder(), block(tt.n, tt.each)))
		check.Same(t, tt.over, s.TooLarge(), "%d names with %d fields each are too many", tt.n, tt.each)
		check.Same(t, tt.n*tt.each+2, len(s.fields), "fields that are kept")
	}
}

// A connection's decoder keeps no block that it has read. The next block may begin with an update of the table.
func TestBlockIsNotKept(t *testing.T) {
	s := FieldSection{Max: 1 << 20}
	dec, block := s.NewDecoder(), append(make([]byte, 0, 64<<10), 0x40, 1, 'a', 1, 'b')
	kept := weak.Make(&block[0])
	must.Do(t, s.Decode(dec, block))
	check.Same(t, []hpack.HeaderField{field("a", "b")}, s.fields, "its fields")
	runtime.GC()
	check.Same(t, true, kept.Value() == nil, "the block is garbage")
	must.Do(t, s.Decode(dec, []byte{0x3f, 0xe1, 0x1f, 0xbe}))
	check.Same(t, []hpack.HeaderField{field("a", "b")}, s.fields, "fields of the table")
}

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
		check.Same(t, true, need == tt.need && ok == tt.ok && (tt.have < FrameHeaderLen || h == tt.h), "%s: got %+v, need %d, %v", tt.name, h, need, ok)
		PutFrameLength(b, 1<<16+2<<8+3)
		h = parseFrameHeader(b)
		check.Same(t, [2]uint32{1<<16 + 2<<8 + 3, tt.h.StreamID}, [2]uint32{h.Length, h.StreamID}, "%s: with another length", tt.name)
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

// Least counts every field of a block, however it is written, and every update of the table.
func TestLeast(t *testing.T) {
	const n = 2000
	var s FieldSection
	long := field(strings.Repeat("n", 200), strings.Repeat("v", 300))
	for name, of := range map[string]struct {
		unit   []byte
		fields int
	}{
		"of the table":         {[]byte{0xba}, 1},
		"of a large index":     {[]byte{0xff, 0x80, 0x01}, 1},
		"added":                {[]byte{0x7a, 0x00}, 1},
		"added, with its name": {[]byte{0x40, 1, 'a', 1, 'b'}, 1},
		"not added":            {[]byte{0x0f, 0x0b, 0x00}, 1},
		"never indexed":        {[]byte{0x10, 1, 'a', 0}, 1},
		"update":               {[]byte{0x3f, 0xe1, 0x1f}, 1},
		"long":                 {NewEncoder().Append(nil, []hpack.HeaderField{long}), 1},
		"two":                  {[]byte{0x40, 1, 'a', 1, 'b', 0xba}, 2},
	} {
		block := bytes.Repeat(of.unit, n)
		want := max(0, n*of.fields*fieldOverhead-2*len(block)-2*tableSize)
		check.Same(t, want, s.Least(block), "%s: excess", name)
		for i := range of.unit { // cut short: the decoder refuses it
			s.Least(block[:len(block)-i])
		}
	}
}
