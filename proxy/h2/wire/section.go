package wire

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// tableSize is the default of SETTINGS_HEADER_TABLE_SIZE, used for both directions: 4 KiB each per
// connection.
const tableSize = 4096

// FieldSection is the last decoded field section (RFC 9113 §8.1). Many connections share one in
// turn.
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
	if _, err := dec.Write(block); err != nil {
		return err
	}
	return dec.Close()
}

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
	// MaxNames limits the names of a section's fields. Consecutive fields of one name count once: a
	// user may have thousands of groups. Real heads have up to fifty names.
	MaxNames = 1000
	// MaxFields limits the fields: 4,000 groups, and as many others as names.
	MaxFields = 5000
)

// Excess returns by how many bytes the section is larger than its block can explain. A section that
// uses each entry of the table once, as every known sender's does, is hardly larger than its
// literals (the shortest Huffman code has 5 bits) and the table: its excess is zero.
func (s *FieldSection) Excess() int { return max(0, s.size-2*s.block-2*tableSize) }

// Request checks a request's head (RFC 9113 §8.3.1) and stores it in h. h.Fields is valid until the
// next Decode.
func (s *FieldSection) Request(h *Head) error {
	var seen uint8
	fields, n := s.fields, 0
	for ; n < len(fields) && strings.HasPrefix(fields[n].Name, ":"); n++ {
		switch bit, to := h.pseudo(fields[n].Name); {
		case to == nil:
			return fmt.Errorf("unknown pseudo-field %q", fields[n].Name)
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
	// They become one: if they differed, one could select a backend here and the other another one
	// there (§8.3.1).
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
		return false, fmt.Errorf("bad field name %q", f.Name)
	case !s.validValue(f.Value):
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
		again, err := setLength(&h.ContentLength, f.Value)
		return !again, err
	}
	return true, nil
}

// validValue caches the last valid value, because most values repeat. Comparing a token with it
// costs a fifth of checking the bytes.
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

// Shorter values than minRemembered must not replace tokens; longer ones than maxRemembered fit in
// no HPACK table, and are decoded anew each time.
const minRemembered, maxRemembered = 256, 4 << 10

// Response checks a response's head (§8.3.2). It drops connection-specific fields rather than
// reject them: net/http does the same, and a backend that sends them works today.
func (s *FieldSection) Response() (ResponseHead, error) {
	r := ResponseHead{ContentLength: -1}
	fields := s.fields
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
		case f.Name == "content-length":
			if again, err := setLength(&r.ContentLength, f.Value); err != nil {
				return r, err
			} else if again {
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
	again = *to >= 0
	*to = int64(n)
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
		if httpguts.ValidTrailerHeader(f.Name) && !ConnectionSpecific(f.Name) && !Credential(f.Name) && (remove == nil || !remove(f.Name)) {
			out = append(out, f)
		}
	}
	return out, nil
}
