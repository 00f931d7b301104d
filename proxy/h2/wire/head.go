package wire

import (
	"errors"
	"strings"

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

// Valid reports whether HTTP/2 can carry the method, target and authority.
func (h *Head) Valid() bool {
	return validMethod(h.Method) && validValue(h.target) && validValue(h.Authority)
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

// mergeHost makes host and :authority one: if they differed, one could select a backend here and
// the other another one there (§8.3.1).
func mergeHost(h *Head, host string) error {
	if h.Authority == "" {
		h.Authority = host
	}
	if host != "" && !strings.EqualFold(host, h.Authority) {
		return errors.New("host differs from :authority")
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
