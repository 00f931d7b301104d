package h2

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// collect is where the hpack decoders put fields. Beyond the limit they are counted and dropped (RFC 9113 §10.5.1).
func (e *engine) collect(f hpack.HeaderField) {
	e.fieldsSize += len(f.Name) + len(f.Value) + 32 // §6.5.2: what SETTINGS_MAX_HEADER_LIST_SIZE counts
	if e.fieldsSize > e.lim.maxHeader {
		e.fieldsOver = true
		return
	}
	e.fields = append(e.fields, f)
}

// The masks hold the bytes that a field name may have (RFC 9110 §5.6.2, without upper case: RFC 9113 §8.2.1), one bit a byte.
const (
	nameMaskLow  uint64 = 1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' | 1<<'+' | 1<<'-' | 1<<'.' | 0x3ff<<'0'
	nameMaskHigh uint64 = 1<<('^'-64) | 1<<('_'-64) | 1<<('`'-64) | 1<<('|'-64) | 1<<('~'-64) | 0x3ffffff<<('a'-64)
)

func validName(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		b := s[i]
		if b >= 128 || b < 64 && nameMaskLow>>b&1 == 0 || b >= 64 && nameMaskHigh>>(b-64)&1 == 0 {
			return false
		}
	}
	return true
}

// validValue refuses control characters; bytes above 127 are opaque (RFC 9110 §5.5).
func validValue(s string) bool {
	// Eight bytes at a time: tokens have a thousand, and looking at them one by one was 9 % of a GET.
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		w := word(s, 0)
		del := w ^ 0x7f*ones
		// Not 0 exactly if a byte is below ' ' (a tab, perhaps) or 0x7f: the first such byte borrows from its high bit.
		if suspects := ((w-' '*ones)&^w | (del-ones)&^del) & high; suspects != 0 && !validBytes(s[:8]) {
			return false
		}
	}
	return validBytes(s)
}

// validValue is the same for what mostly comes again. Comparing a token with the last one costs a fifth of
// looking at its bytes.
func (e *engine) validValue(s string) bool {
	if s == e.valid {
		return true
	}
	ok := validValue(s)
	if ok && len(s) >= minRemembered && len(s) <= maxRemembered {
		e.valid = s
	}
	return ok
}

// minRemembered keeps what is short from pushing tokens out, maxRemembered what fits in no HPACK table
// and is sent again each time.
const minRemembered, maxRemembered = 256, 4 << 10

func validBytes(s string) bool {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// trim cuts white space that must not be there (§8.2.1). Refusing it would break clients that net/http serves.
func trim(s string) string {
	if s != "" && (s[0] <= ' ' || s[len(s)-1] <= ' ') {
		return strings.Trim(s, " \t")
	}
	return s
}

// ConnectionSpecific names (in lower case) the fields that mean something only to one connection and
// must not appear in HTTP/2 (§8.2.2).
func ConnectionSpecific(name string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

// parseRequest checks a request's field list (RFC 9113 §8.3.1) and sorts it into a Head whose Fields share e.fields.
func (e *engine) parseRequest(h *Head) error {
	var seen uint8
	var path string
	fields, n := e.fields, 0
	for n < len(fields) && strings.HasPrefix(fields[n].Name, ":") {
		var bit uint8
		var to *string
		switch fields[n].Name {
		case ":method":
			bit, to = 1, &h.Method
		case ":scheme":
			bit, to = 2, &h.Scheme
		case ":path":
			bit, to = 4, &path
		case ":authority":
			bit, to = 8, &h.Authority
		default:
			return fmt.Errorf("unknown pseudo-field %q", fields[n].Name)
		}
		if seen&bit != 0 {
			return fmt.Errorf("second %s", fields[n].Name)
		}
		seen |= bit
		*to = fields[n].Value
		n++
	}
	if err := checkPseudo(h, seen, path); err != nil {
		return err
	}
	h.setTarget(path)
	h.ContentLength = -1
	host, out := "", fields[:0]
	for i := n; i < len(fields); i++ {
		f := fields[i]
		f.Value = trim(f.Value)
		keep, err := e.requestField(h, &f, &host)
		if err != nil {
			return err
		}
		if keep {
			out = append(out, f)
		}
	}
	h.Fields = out
	return mergeHost(h, host)
}

func checkPseudo(h *Head, seen uint8, path string) error {
	switch {
	case seen&1 == 0:
		return errors.New("no :method")
	case !validMethod(h.Method):
		return errors.New("bad :method")
	case h.Method == "CONNECT":
		if seen&8 == 0 || seen&6 != 0 { // §8.5
			return errors.New("bad CONNECT")
		}
	case seen&6 != 6:
		return errors.New("no :scheme or :path")
	case h.Scheme != "https" && h.Scheme != "http":
		return errors.New("bad :scheme")
	case !strings.HasPrefix(path, "/") && (path != "*" || h.Method != "OPTIONS"):
		return errors.New("bad :path")
	}
	if !validValue(path) || strings.ContainsAny(path, " \t") || !validValue(h.Authority) {
		return errors.New("control characters in :path or :authority")
	}
	return nil
}

func validMethod(m string) bool {
	for i := 0; i < len(m); i++ {
		if b := m[i]; (b < 'A' || b > 'Z') && !validName(m[i:i+1]) {
			return false
		}
	}
	return m != ""
}

// requestField checks one field; false: it is not kept.
func (e *engine) requestField(h *Head, f *hpack.HeaderField, host *string) (bool, error) {
	switch {
	case !validName(f.Name): // a late pseudo-field too
		return false, fmt.Errorf("bad field name %q", f.Name)
	case !e.validValue(f.Value):
		return false, fmt.Errorf("bad value of field %q", f.Name)
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
		n, err := contentLength(f.Value)
		if err != nil || h.ContentLength >= 0 && h.ContentLength != n {
			return false, errors.New("bad content-length")
		}
		again := h.ContentLength >= 0
		h.ContentLength = n
		return !again, nil
	}
	return true, nil
}

// mergeHost makes host and :authority one: two that differ could select one backend here and another there (§8.3.1).
func mergeHost(h *Head, host string) error {
	switch {
	case host == "" || host == h.Authority:
		return nil
	case h.Authority == "":
		h.Authority = host
		return nil
	case strings.EqualFold(host, h.Authority):
		return nil
	}
	return errors.New("host differs from :authority")
}

// contentLength takes digits only: no sign, no list (RFC 9110 §8.6).
func contentLength(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || s[0] < '0' || s[0] > '9' {
		return 0, fmt.Errorf("content-length %q", s)
	}
	return int64(n), nil
}

// responseHead is a checked response head.
type responseHead struct {
	status int
	length int64 // content-length; -1: none
	fields []hpack.HeaderField
}

// parseResponse checks a response's field list (§8.3.2). Connection-specific fields are dropped rather than refused: net/http does
// the same, and a backend that sends them works today.
func (e *engine) parseResponse() (responseHead, error) {
	r := responseHead{length: -1}
	fields := e.fields
	if len(fields) == 0 || fields[0].Name != ":status" {
		return r, errors.New("no :status")
	}
	v := fields[0].Value
	if len(v) != 3 || v[0] < '1' || v[0] > '9' || v[1] < '0' || v[1] > '9' || v[2] < '0' || v[2] > '9' {
		return r, fmt.Errorf("bad :status %.10q", v)
	}
	r.status = int(v[0]-'0')*100 + int(v[1]-'0')*10 + int(v[2]-'0')
	out := fields[1:1]
	for _, f := range fields[1:] {
		f.Value = trim(f.Value)
		switch {
		case !validName(f.Name) || !validValue(f.Value):
			return r, fmt.Errorf("bad field %.40q", f.Name)
		case ConnectionSpecific(f.Name):
			continue
		case f.Name == "content-length":
			n, err := contentLength(f.Value)
			if err != nil || r.length >= 0 && r.length != n {
				return r, errors.New("bad content-length")
			}
			if r.length >= 0 {
				continue
			}
			r.length = n
		}
		out = append(out, f)
	}
	r.fields = out
	return r, nil
}

// passesTrailer reports whether a trailer of that name may be forwarded. Some would change a message
// that was already acted upon (RFC 9110 §6.5.1), or say who asks.
func passesTrailer(name string) bool {
	return httpguts.ValidTrailerHeader(name) && !ConnectionSpecific(name) && !credential(name)
}

// parseTrailers checks trailers and returns a copy without the fields that remove names.
func (e *engine) parseTrailers(remove func(string) bool) ([]hpack.HeaderField, error) {
	out := []hpack.HeaderField{}
	for _, f := range e.fields {
		f.Value = trim(f.Value)
		if !validName(f.Name) || !validValue(f.Value) {
			return nil, fmt.Errorf("bad trailer %.40q", f.Name)
		}
		if !passesTrailer(f.Name) || remove != nil && remove(f.Name) {
			continue
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}
