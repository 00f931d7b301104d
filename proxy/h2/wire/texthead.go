package wire

import "bytes"

// TextHead counts what has come of a head over HTTP/1.1, before net/http has read it whole. It is
// for one goroutine.
type TextHead struct {
	Bytes, Lines, Names int  // Lines and Names include the first line
	Interim             bool // a response's status is 1xx, but for 101: another head follows

	name, last []byte // of this line as far as it has come, and of the one before
	column     int    // bytes of this line
	value      bool   // the name is complete
}

const (
	// perLine and perName are what net/http allocates for a field in addition to its bytes: a
	// string's header in a slice that grows by halves, and an entry of a map (measured: 16, 112).
	perLine, perName = 32, 128
	// longName is how much of a name is kept: more than any has. Longer ones all count.
	longName = 64
)

// Read counts bytes. It returns how many belong to the head, and true at its end.
func (h *TextHead) Read(p []byte) (n int, ended bool) {
	for n < len(p) {
		line, _, whole := bytes.Cut(p[n:], []byte("\n"))
		if !h.value {
			var name []byte
			name, _, h.value = bytes.Cut(line, []byte(":"))
			h.name = append(h.name, name[:min(len(name), longName-len(h.name))]...)
		}
		n, h.Bytes, h.column = n+len(line), h.Bytes+len(line), h.column+len(line)
		if !whole {
			break
		}
		n, h.Bytes = n+1, h.Bytes+1
		if h.column == 0 || h.column == 1 && len(h.name) == 1 && h.name[0] == '\r' {
			if h.Lines > 0 {
				return n, true
			}
			h.name, h.column = h.name[:0], 0 // before the head
			continue
		}
		h.endLine()
	}
	return n, false
}

func (h *TextHead) endLine() {
	if h.Lines == 0 {
		status := bytes.TrimLeft(h.name[min(len("HTTP/1.1"), len(h.name)):], " ")
		h.Interim = len(status) == 0 || status[0] == '1' && !bytes.HasPrefix(status, []byte("101")) // net/http skips any number of spaces
	}
	if len(h.name) == longName || !bytes.EqualFold(h.name, h.last) {
		h.Names++
	}
	h.Lines++
	h.name, h.last, h.column, h.value = h.last[:0], h.name, 0, false
}

// Weight is what net/http allocates for what has come.
func (h *TextHead) Weight() int64 { return int64(h.Bytes + h.Lines*perLine + h.Names*perName) }

// Over reports whether there are more names or fields than in a section of HTTP/2.
func (h *TextHead) Over() bool { // of which the first line is none
	return h.Names > MaxNames+1 || h.Lines > MaxFields+1
}
