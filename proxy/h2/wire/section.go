package wire

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// Head is one decoded request head. Its strings stay valid; Fields only during the call that receives it.
type Head struct {
	Method    string // :method
	Scheme    string // :scheme
	Authority string // :authority, or the host field if there is none
	Path      string // :path as received, up to the first '?'
	RawQuery  string // :path as received, after the first '?'
	// Fields are the other fields in the order received: valid lower-case names (RFC 9113 §8.2), without host.
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

// Valid reports whether HTTP/2 can carry method, target and authority. A method is a token in any case (RFC 9110 §9.1).
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

// pseudo returns the place for a pseudo-field's value, and its bit for check. Nil means that requests have none such.
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

// ResponseHead is one decoded response head. Its strings stay valid; Fields only until the next section is decoded.
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
		// Not 0 exactly if some byte is below ' ' (perhaps a tab) or 0x7f: the first such borrows from its high bit.
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

// trim removes white space at the ends, which is not allowed (§8.2.1): net/http serves clients that send it.
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

// Credential reports whether the field with this lower-case name is never indexed towards backends. Many users'
// requests share a table, and one user must not learn another's credential from the size of requests (RFC 7541 §7.1.3).
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

// TextHead counts what has come of a head over HTTP/1.1, before net/http has read it whole. It is for one goroutine.
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
	longName         = 64 // how much of a name is kept: more than any has. Longer ones all count
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
		// net/http makes a map of a Trailer's names, half as large. A line that begins with a space continues the last.
		if len(h.name) > 0 && (h.name[0] <= ' ' || h.value && bytes.EqualFold(h.name, []byte("trailer"))) {
			h.Bytes += perName / 2 * bytes.Count(line, []byte(","))
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
			// net/http skips any number of spaces.
			h.Interim = len(status) == 0 || status[0] == '1' && !bytes.HasPrefix(status, []byte("101"))
		}
		if len(h.name) == longName || !bytes.EqualFold(h.name, h.last) {
			h.Names++
		}
		h.Lines++
		h.name, h.last, h.column, h.value = h.last[:0], h.name, 0, false
	}
	return n, false
}

// Count counts a head that net/http has read.
func (h *TextHead) Count(header http.Header) {
	h.Names += len(header)
	for name, values := range header {
		for _, v := range values {
			h.Lines, h.Bytes = h.Lines+1, h.Bytes+len(name)+len(v)
		}
	}
}

// Weight is what net/http allocates for what has come.
func (h *TextHead) Weight() int64 { return int64(h.Bytes + h.Lines*perLine + h.Names*perName) }

// Answer is what an answer's head counts: twice, as net/http has read it and as that writes it, above the usual.
func (h *TextHead) Answer() int64 { return max(0, 2*h.Weight()-8<<10) }

// Over reports whether there are more names or fields, without the first line, than in a section of HTTP/2.
func (h *TextHead) Over() bool { return h.Names > MaxNames+1 || h.Lines > MaxFields+1 }

const tableSize = 4096 // the default of SETTINGS_HEADER_TABLE_SIZE, used for both directions: 4 KiB each per connection

// FieldSection is the last decoded field section (RFC 9113 §8.1). Many connections share one in turn.
type FieldSection struct {
	// Max is the size limit in bytes, counted as for SETTINGS_MAX_HEADER_LIST_SIZE: fields beyond
	// it, and beyond MaxNames and MaxFields, are dropped (RFC 9113 §10.5.1).
	Max int

	dec    *hpack.Decoder // of this section
	fields []hpack.HeaderField
	size   int
	names  int
	last   string // the last name
	block  int    // its encoded size in bytes
	valid  string // the last valid long value, see validValue
}

// NewDecoder returns a decoder for one connection.
func (s *FieldSection) NewDecoder() *hpack.Decoder { return hpack.NewDecoder(tableSize, s.add) }

func (s *FieldSection) add(f hpack.HeaderField) {
	if f.Name != s.last && !strings.HasPrefix(f.Name, ":") {
		s.names++
	}
	s.last = f.Name
	s.fields = append(s.fields, f)
	if s.size += len(f.Name) + len(f.Value) + fieldOverhead; s.TooLarge() {
		s.dec.SetEmitEnabled(false) // the rest only updates the table
	}
}

// Decode decodes a complete field block.
func (s *FieldSection) Decode(dec *hpack.Decoder, block []byte) error {
	s.dec, s.fields, s.size, s.names, s.last, s.block = dec, s.fields[:0], 0, 0, "", len(block)
	dec.SetEmitEnabled(true)
	_, err := dec.Write(block)
	err = cmp.Or(err, dec.Close())
	dec.SetEmitEnabled(false)
	_, _ = dec.Write(anyField) // it keeps what it has read last: an idle connection would hold a block of a megabyte
	return cmp.Or(err, dec.Close())
}

var anyField = []byte{0x80 | 2} //nolint:gochecknoglobals // the shortest block (RFC 7541 §6.1): nothing writes it

// Size returns the bytes counted for SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113 §6.5.2).
func (s *FieldSection) Size() int { return s.size }

// Weight returns what the section becomes in memory: its bytes, and for each field its entry and
// two allocations, of which Size counts half.
func (s *FieldSection) Weight() int { return s.size + fieldOverhead*len(s.fields) }

// TooLarge reports whether fields were dropped.
func (s *FieldSection) TooLarge() bool {
	return s.size > s.Max || s.names > MaxNames || len(s.fields) > MaxFields
}

const (
	// MaxNames limits the names of a section, of which real ones have fifty. Consecutive fields of one count once.
	MaxNames = 1000
	// MaxFields limits the fields: 4,000 groups, and as many others as names.
	MaxFields = 5000
)

// Excess returns by how many bytes the section is larger than its block can explain. A section that
// uses each entry of the table once, as every known sender's does, is hardly larger than its
// literals (the shortest Huffman code has 5 bits) and the table: its excess is zero.
func (s *FieldSection) Excess() int { return excess(s.size, s.block) }

func excess(size, block int) int { return max(0, size-2*block-2*tableSize) }

// Request checks a request's head (RFC 9113 §8.3.1) and stores it in h. h.Fields is valid until the next Decode.
func (s *FieldSection) Request(h *Head) error {
	var seen uint8
	fields, n := s.fields, 0
	for ; n < len(fields) && strings.HasPrefix(fields[n].Name, ":"); n++ {
		switch bit, to := h.pseudo(fields[n].Name); {
		case to == nil:
			return fmt.Errorf("unknown pseudo-field %.40q", fields[n].Name)
		case seen&bit != 0:
			return fmt.Errorf("second %s", fields[n].Name)
		default:
			seen |= bit
			*to = fields[n].Value
		}
	}
	if err := h.check(seen); err != nil {
		return err
	}
	h.SetTarget(h.target)
	h.ContentLength, h.Size = -1, s.size
	host, out := "", fields[:0]
	for i := n; i < len(fields); i++ {
		f := fields[i]
		f.Value = trim(f.Value)
		keep, err := s.requestField(h, &f, &host)
		if err != nil {
			return err
		}
		if keep {
			out = append(out, f)
		}
	}
	h.Fields = out
	// They become one: if they differed, one could select a backend here and the other another one there (§8.3.1).
	h.Authority = cmp.Or(h.Authority, host)
	if host != "" && !strings.EqualFold(host, h.Authority) {
		return errors.New("host differs from :authority")
	}
	return nil
}

// requestField checks one field, and reports whether to keep it.
func (s *FieldSection) requestField(h *Head, f *hpack.HeaderField, host *string) (bool, error) {
	switch {
	case !validName(f.Name): // a late pseudo-field too
		return false, fmt.Errorf("bad field name %.40q", f.Name)
	case !s.validValue(f.Value):
		return false, fmt.Errorf("bad value of field %.40q", f.Name)
	case ConnectionSpecific(f.Name):
		return false, fmt.Errorf("connection-specific field %q", f.Name)
	}
	switch f.Name {
	case "te":
		if f.Value != "trailers" {
			return false, errors.New("te other than trailers")
		}
	case "host":
		if *host != "" && *host != f.Value {
			return false, errors.New("two hosts")
		}
		*host = f.Value
		return false, nil
	case "content-length":
		again, err := setLength(&h.ContentLength, f.Value)
		return !again, err
	}
	return true, nil
}

// validValue caches the last valid value, because most repeat: comparing a token costs a fifth of checking it.
func (s *FieldSection) validValue(v string) bool {
	if v == s.valid {
		return true
	}
	ok := validValue(v)
	if ok && len(v) >= minRemembered && len(v) <= maxRemembered {
		s.valid = v
	}
	return ok
}

// Shorter values must not replace tokens; longer ones fit in no HPACK table, and are decoded anew each time.
const minRemembered, maxRemembered = 256, 4 << 10

// Response checks a response's head (§8.3.2). It drops connection-specific fields rather than
// reject them: net/http does the same, and a backend that sends them works today.
func (s *FieldSection) Response() (ResponseHead, error) {
	r, fields := ResponseHead{ContentLength: -1}, s.fields
	if len(fields) == 0 || fields[0].Name != ":status" {
		return r, errors.New("no :status")
	}
	v := fields[0].Value
	if len(v) != 3 || v[0] < '1' || v[0] > '9' || v[1] < '0' || v[1] > '9' || v[2] < '0' || v[2] > '9' {
		return r, fmt.Errorf("bad :status %.10q", v)
	}
	r.Status = int(v[0]-'0')*100 + int(v[1]-'0')*10 + int(v[2]-'0')
	out := fields[1:1]
	for _, f := range fields[1:] {
		f.Value = trim(f.Value)
		switch {
		case !validName(f.Name) || !validValue(f.Value):
			return r, fmt.Errorf("bad field %.40q", f.Name)
		case ConnectionSpecific(f.Name):
			continue
		case f.Name == "content-length" && (r.Status < 200 || r.Status == http.StatusNoContent):
			continue // these declare none (RFC 9110 §8.6): a client would miss the content, which is not forwarded
		case f.Name == "content-length":
			again, err := setLength(&r.ContentLength, f.Value)
			if err != nil && r.ContentLength >= 0 { // two that differ
				return r, err
			}
			if err != nil || again { // what is no number frames nothing here, and net/http ignores it, too
				continue
			}
		}
		out = append(out, f)
	}
	r.Fields = out
	return r, nil
}

// Pseudo returns the :status field of the response's head.
func (s *FieldSection) Pseudo() []hpack.HeaderField { return s.fields[:1] }

// setLength accepts digits only: no sign, no list (RFC 9110 §8.6). again reports a repeated length.
func setLength(to *int64, digits string) (again bool, err error) {
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || *to >= 0 && *to != int64(n) {
		return false, errors.New("bad content-length")
	}
	again, *to = *to >= 0, int64(n)
	return again, nil
}

// Trailers checks trailers and returns a copy without those that remove reports, and without those
// that would change a message that was already acted upon (RFC 9110 §6.5.1), or name the user.
func (s *FieldSection) Trailers(remove func(string) bool) ([]hpack.HeaderField, error) {
	var out []hpack.HeaderField
	for _, f := range s.fields {
		f.Value = trim(f.Value)
		if !validName(f.Name) || !validValue(f.Value) {
			return nil, fmt.Errorf("bad trailer %.40q", f.Name)
		}
		barred := !httpguts.ValidTrailerHeader(f.Name) || ConnectionSpecific(f.Name) || Credential(f.Name)
		if !barred && (remove == nil || !remove(f.Name)) {
			out = append(out, f)
		}
	}
	return out, nil
}
