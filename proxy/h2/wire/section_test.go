package wire

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzRequestBlock compares our judgement of a field block with x/net's frame reader: what we
// accept, it accepts.
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
		if _, err := fr.ReadFrame(); err != nil {
			t.Errorf("x/net refuses what we accept: %v: %q", err, fields)
		}
		for _, hf := range h.Fields {
			if !validName(hf.Name) || !validValue(hf.Value) || ConnectionSpecific(hf.Name) || hf.Name == "host" {
				t.Errorf("forwarded field %q", hf)
			}
		}
	})
}

func TestValidValue(t *testing.T) {
	for b := range 256 {
		want := b >= ' ' && b != 0x7f || b == '\t'
		for at := range 20 {
			s := []byte("some value of twenty")
			s[at] = byte(b)
			if got := validValue(string(s)); got != want {
				t.Errorf("validValue(%q) = %v", s, got)
			}
		}
	}
	if validValue("tab\tthen\x01bell ") || validValue("\x7f") || !validValue("") {
		t.Error("short values are misjudged")
	}
}

// A status has three digits, of which the first is not 0 (RFC 9110 §15).
func TestStatus(t *testing.T) {
	for status, want := range map[string]int{
		"100": 100, "199": 199, "204": 204, "909": 909, "990": 990, "999": 999,
		"": 0, "20": 0, "2000": 0, "099": 0, "/00": 0, ":00": 0, "2/0": 0, "2:0": 0, "20/": 0, "20:": 0,
	} {
		s := FieldSection{fields: []hpack.HeaderField{{Name: ":status", Value: status}}}
		if r, err := s.Response(); r.Status != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", status, r.Status, err)
		}
	}
}
