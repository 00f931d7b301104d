package wire

import (
	"bytes"
	"errors"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Head is one decoded request head. Its strings stay valid; Fields only during the call that
// receives it.
type Head struct {
	Method    string // :method
	Scheme    string // :scheme
	Authority string // :authority, or the host field if there is none
	Path      string // :path as received, up to the first '?'
	RawQuery  string // :path as received, after the first '?'
	// Fields are the other fields in the order received: valid lower-case names (RFC 9113 §8.2),
	// without host.
	Fields        []hpack.HeaderField
	ContentLength int64 // -1 means not declared
	Size          int   // as FieldSection.Size counts
	EndStream     bool  // no body follows

	target string // :path as received
}

// SetTarget sets :path.
func (h *Head) SetTarget(path string) {
	h.target = path
	h.Path, h.RawQuery, _ = strings.Cut(path, "?")
}

// Target returns :path as received.
func (h *Head) Target() string { return h.target }

// Valid reports whether HTTP/2 can carry the method, target and authority. A method is a token, as
// a field's name, but in any case (RFC 9110 §9.1).
func (h *Head) Valid() bool {
	return httpguts.ValidHeaderFieldName(h.Method) && validValue(h.target) && validValue(h.Authority)
}

// Restore sets the head from fields that were forwarded.
func (h *Head) Restore(fields []hpack.HeaderField) {
	for _, f := range fields {
		if _, to := h.pseudo(f.Name); to != nil {
			*to = f.Value
		} else {
			h.Fields = append(h.Fields, f)
		}
	}
	h.SetTarget(h.target)
}

// pseudo returns the place for the value of a pseudo-field, and its bit in check's argument. Nil
// means that requests have no such pseudo-field.
func (h *Head) pseudo(name string) (bit uint8, to *string) {
	switch name {
	case ":method":
		return 1, &h.Method
	case ":scheme":
		return 2, &h.Scheme
	case ":path":
		return 4, &h.target
	case ":authority":
		return 8, &h.Authority
	}
	return 0, nil
}

// check validates the pseudo-fields; seen has a bit for each that was received.
func (h *Head) check(seen uint8) error {
	switch {
	case seen&1 == 0:
		return errors.New("no :method")
	case !h.Valid() || strings.ContainsAny(h.target, " \t"):
		return errors.New("bad :method, :path or :authority")
	case h.Method == "CONNECT":
		if seen&8 == 0 || seen&6 != 0 { // §8.5
			return errors.New("bad CONNECT")
		}
	case seen&6 != 6:
		return errors.New("no :scheme or :path")
	case h.Scheme != "https" && h.Scheme != "http":
		return errors.New("bad :scheme")
	case !strings.HasPrefix(h.target, "/") && (h.target != "*" || h.Method != "OPTIONS"):
		return errors.New("bad :path")
	}
	return nil
}

// ResponseHead is one decoded response head. Its strings stay valid; Fields only until the next
// section is decoded.
type ResponseHead struct {
	Status        int                 // :status
	ContentLength int64               // -1 means not declared
	Fields        []hpack.HeaderField // the other fields in the order received
}

// validName accepts a token (RFC 9110 §5.6.2) in lower case (RFC 9113 §8.2.1).
func validName(s string) bool {
	for i := range len(s) {
		if b := s[i]; 'A' <= b && b <= 'Z' || !httpguts.IsTokenRune(rune(b)) {
			return false
		}
	}
	return s != ""
}

// validValue rejects control characters; bytes above 127 are opaque (RFC 9110 §5.5).
func validValue(s string) bool {
	// Eight bytes at a time: tokens have a thousand bytes; checking each took 9 % of a GET.
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		w := word(s, 0)
		del := w ^ 0x7f*ones
		// Not 0 exactly if some byte is below ' ' (perhaps a tab) or is 0x7f: the first such byte
		// borrows from its high bit.
		if suspects := ((w-' '*ones)&^w | (del-ones)&^del) & high; suspects != 0 && !validBytes(s[:8]) {
			return false
		}
	}
	return validBytes(s)
}

func validBytes(s string) bool {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// trim removes leading and trailing white space, which is not allowed (§8.2.1). Rejecting it would
// break clients that net/http serves.
func trim(s string) string {
	if s != "" && (s[0] <= ' ' || s[len(s)-1] <= ' ') {
		return strings.Trim(s, " \t")
	}
	return s
}

// ConnectionSpecific reports whether the field with this lower-case name concerns one connection
// only and must not appear in HTTP/2 (§8.2.2).
func ConnectionSpecific(name string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// Credential reports whether the field with this lower-case name is never indexed towards backends.
// Many users' requests share a table, and one user must not learn another's credential from the
// size of requests (RFC 7541 §7.1.3).
func Credential(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "set-cookie":
		return true
	}
	return strings.HasPrefix(name, "impersonate-") || strings.HasPrefix(name, "x-remote-")
}

// AppendField appends the values of an http.Header's key, except what HTTP/2 does not allow.
func AppendField(fields []hpack.HeaderField, key string, values []string) []hpack.HeaderField {
	name := strings.ToLower(key)
	if !validName(name) || ConnectionSpecific(name) {
		return fields
	}
	for _, v := range values {
		if v = trim(v); validValue(v) {
			fields = append(fields, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return fields
}

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
	return n, false
}

// Weight is what net/http allocates for what has come.
func (h *TextHead) Weight() int64 { return int64(h.Bytes + h.Lines*perLine + h.Names*perName) }

// Over reports whether there are more names or fields than in a section of HTTP/2.
func (h *TextHead) Over() bool { // of which the first line is none
	return h.Names > MaxNames+1 || h.Lines > MaxFields+1
}
