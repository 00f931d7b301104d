package engine

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever a peer says costs in proportion to its size: heads, answers, interim heads, trailers,
// and frames of all types.
func TestInProportion(t *testing.T) {
	var rows []proportion.Row
	row := func(name string, n int, from func(r *rig) *peer, said func(n int) []byte) {
		rows = append(rows, proportion.Row{Name: name, N: n, Of: func(n int) (int, func() any) {
			b := said(n)
			return len(b), func() any {
				r, c := newClient(t)
				c.headers(1, false, ":method=POST", ":scheme=https", ":authority=a", ":path=/")
				c.flush()
				r.backend(0)
				p := from(r)
				p.to.Write(b)
				p.flush()
				for _, p := range r.peers {
					p.to, p.from = bytes.Buffer{}, bytes.Buffer{} // the test's own
				}
				return r.e
			}
		}})
	}
	writes := func(say func(f *http2.Framer, n int)) func(n int) []byte {
		return func(n int) []byte { return written(func(f *http2.Framer) { say(f, n) }) }
	}
	client := func(r *rig) *peer { return r.peers[0] }
	backend := func(r *rig) *peer { return r.backend(0) }
	for _, s := range proportion.Heads() {
		row("head: "+s.Name, s.Small, client, writes(func(f *http2.Framer, n int) {
			h := s.Of("/", n)
			section(f, 3, true, requested(&h), minMaxFrame, 0)
		}))
		row("trailers: "+s.Name, s.Small, client, writes(func(f *http2.Framer, n int) {
			section(f, 1, true, s.Of("/", n).Fields, minMaxFrame, 0)
		}))
	}
	for _, s := range proportion.Answers() {
		answered := func(status string, end bool) func(n int) []byte {
			return writes(func(f *http2.Framer, n int) {
				section(f, 1, end, append([]hpack.HeaderField{field(":status", status)}, s.Of("", n).Fields...), minMaxFrame, 0)
			})
		}
		row("answer: "+s.Name, s.Small, backend, answered("200", true))
		row("interim head: "+s.Name, s.Small, backend, answered("103", false))
		row("trailers of an answer: "+s.Name, s.Small, backend, writes(func(f *http2.Framer, n int) {
			section(f, 1, false, []hpack.HeaderField{field(":status", "200")}, minMaxFrame, 0)
			section(f, 1, true, s.Of("", n).Fields, minMaxFrame, 0)
		}))
	}
	plain := proportion.Plain().Of("/", 8<<10)
	for _, of := range []struct{ name, first, frame string }{ // %d is another number each time
		{name: "PING", frame: "PING pingpong"},
		{name: "SETTINGS", frame: "SETTINGS"},
		{name: "SETTINGS of the window", frame: "SETTINGS INITIAL_WINDOW_SIZE=%d"},
		{name: "WINDOW_UPDATE", frame: "WINDOW 0 1"},
		{name: "WINDOW_UPDATE of a stream", frame: "WINDOW 1 1"},
		{name: "WINDOW_UPDATE of an ended stream", first: "RST 1 CANCEL", frame: "WINDOW 1 1"},
		{name: "DATA of one byte", frame: "DATA 1 x"},
		{name: "DATA of a reset stream", first: "RST 1 CANCEL", frame: "DATA 1 x"},
		{name: "empty DATA", frame: "DATA 1"},
		{name: "padded DATA", frame: `RAW 1 0 8 "\xff(255)"`},
		{name: "PRIORITY", frame: "RAW 1 2 0 %d"},
		{name: "unknown frames", frame: "RAW 1 119 0"},
		{name: "answers to no PING", frame: "PING pingpong ACK"},
		{name: "RST_STREAM", frame: "RST 1 CANCEL"},
	} {
		for side, from := range map[string]func(*rig) *peer{"a client's ": client, "a backend's ": backend} {
			row(side+of.name, 40, from, func(n int) []byte {
				p := newRig(t).client()
				said := p.bytes("%s", of.first)
				for i := range n {
					said = append(said, p.bytes("%s", strings.ReplaceAll(of.frame, "%d", fmt.Sprint(10_000+i)))...)
				}
				return said
			})
		}
	}
	for side, from := range map[string]func(*rig) *peer{"a client's ": client, "a backend's ": backend} {
		row(side+"interim heads", 40, from, writes(func(f *http2.Framer, n int) {
			for range n {
				section(f, 1, false, []hpack.HeaderField{field(":status", "103"), field("a", "b")}, minMaxFrame, 0)
			}
		}))
	}
	row("settings in one frame", 100, client, func(n int) []byte {
		return newRig(t).client().bytes("SETTINGS%s", strings.Repeat(" INITIAL_WINDOW_SIZE=1000 INITIAL_WINDOW_SIZE=1001", n))
	})
	row("pieces of a head", 16, client, writes(func(f *http2.Framer, n int) {
		part := proportion.Plain().Of("/", 200*n)
		section(f, 3, true, requested(&part), 200, 0)
	}))
	row("padding of a head", 4, client, writes(func(f *http2.Framer, n int) {
		section(f, 3, true, requested(&plain), minMaxFrame/4, uint8(50*n))
	}))
	row("heads that were promised no end", 50, client, writes(func(f *http2.Framer, n int) {
		for i := range n {
			section(f, uint32(2*i+3), false, requested(&proportion.Head{Path: "/"}), minMaxFrame, 0)
		}
	}))
	for i := range rows {
		rows[i].Held = 24 // a field of 6 bytes is 40 in the list that the connections of a shard share
	}
	rows[len(rows)-1].Held = 80 // the state of a stream; there are 250 at most
	proportion.Check(t, rows...)
}

func requested(h *proportion.Head) []hpack.HeaderField {
	return append([]hpack.HeaderField{field(":method", "GET"), field(":scheme", "https"), field(":authority", "a"), field(":path", h.Path)}, h.Fields...)
}

func written(write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	write(f)
	return b.Bytes()
}

// section writes a field section in pieces. It uses no table, so it can be said again.
func section(f *http2.Framer, id uint32, end bool, fields []hpack.HeaderField, piece int, padding uint8) {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for _, field := range fields {
		field.Sensitive = true
		_ = enc.WriteField(field)
	}
	pieces(f, id, end, b.Bytes(), piece, padding)
}

func pieces(f *http2.Framer, id uint32, end bool, block []byte, piece int, padding uint8) {
	n := min(len(block), piece)
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block), PadLength: padding})
	for block = block[n:]; len(block) > 0; block = block[n:] {
		n = min(len(block), piece)
		_ = f.WriteContinuation(id, n == len(block), block[:n])
	}
}
