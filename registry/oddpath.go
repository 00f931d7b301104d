package registry

import (
	"slices"
	"strings"
)

// shape is what inspect finds.
type shape uint8

const (
	plainPath shape = iota
	// oddPath may be read in more than one way by those who decode or clean it.
	oddPath
	// dottedPath has a dot segment, written plainly or escaped.
	dottedPath
	// brokenPath is no path of a valid request.
	brokenPath
)

// selecting is how many slashes of a path come before the part that selects nothing any more: /apis/<group>/<version>/….
const selecting = 4

// inspect looks at every byte of a path once. Escapes, backslashes and empty segments make it odd only where they can change what is selected,
// so names with %2F in them cost nothing; dot segments reach back from anywhere.
func inspect(path string) shape {
	if path == "" || path[0] != '/' {
		return brokenPath
	}
	found := plainPath
	slashes := 0
	dots, length := 0, 0 // of the current segment, decoded: its dots and its bytes
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '/':
			if length == 0 && slashes > 0 && slashes < selecting {
				found = max(found, oddPath)
			}
			slashes++
		case c <= ' ' || c == 0x7f:
			// No server lets a control byte or a space into a path; one that comes by way of HTTP/2 could split a request in HTTP/1.1.
			return brokenPath
		case c == '%' || c == '\\' || c == '#' || c == '?':
			if slashes < selecting {
				found = max(found, oddPath)
			}
			if b, ok := unescape(path, i); ok {
				c = b
				i += 2
			}
		}
		switch c {
		case '/', '\\':
			if dots == length && (dots == 1 || dots == 2) {
				found = dottedPath
			}
			dots, length = 0, 0
		case '.':
			dots++
			length++
		default:
			length++
		}
	}
	if dots == length && (dots == 1 || dots == 2) {
		found = dottedPath
	}
	return found
}

// unescape decodes the escape at path[i], if that is one.
func unescape(path string, i int) (byte, bool) {
	if path[i] != '%' || i+2 >= len(path) {
		return 0, false
	}
	high, low := unhex(path[i+1]), unhex(path[i+2])
	if high > 15 || low > 15 {
		return 0, false
	}
	return high<<4 | low, true
}

// unhex returns the value of a hexadecimal digit, 255 for anything else.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// matchOdd decides about a path that could be read in more than one way: every reading must select the same, unless all of them are the local
// apiserver's, who reads it once and alone. A dot segment is refused outright on the way to anything else: no Kubernetes object can be called
// "." or "..", and a backend that resolves it would serve another object than the one that was authorized.
func (t *Table) matchOdd(path string, m Match) Match {
	for _, reading := range readings(path) {
		if n := t.selects(reading); n != m && (n.Route != RouteLocal || m.Route != RouteLocal) {
			return Match{Route: RouteInvalid}
		}
	}
	if m.Route != RouteLocal && inspect(path) == dottedPath {
		return Match{Route: RouteInvalid}
	}
	return m
}

// readings are the ways in which servers are known to read a path: decoded or not, backslashes as slashes (IIS, browsers), cut at a fragment or
// query that should not be there, slashes merged (nginx, path.Clean), dot segments resolved with (path.Clean) and without (RFC 3986 §5.2.4)
// merging. Only odd paths pay for it.
func readings(path string) []string {
	ways := []string{path, decode(path)}
	for _, w := range ways[:2] {
		ways = append(ways, strings.ReplaceAll(w, `\`, "/"))
	}
	if i := strings.IndexAny(path, "#?"); i >= 0 {
		ways = append(ways, path[:i], decode(path[:i]))
	}
	for _, w := range slices.Clip(ways) {
		merged := merge(w)
		// path.Clean leaves no slash where a dot segment was last; the RFC does.
		clean := removeDots(merged)
		ways = append(ways, merged, removeDots(w), clean, strings.TrimSuffix(clean, "/"), merge(removeDots(w)))
	}
	return ways
}

// decode resolves the escapes of a path once. What is no escape stays.
func decode(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c, ok := unescape(path, i)
		if !ok {
			b.WriteByte(path[i])
			continue
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String()
}

// merge makes one slash of several.
func merge(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			b.WriteByte(path[i])
		}
	}
	return b.String()
}

// removeDots resolves dot segments as RFC 3986 §5.2.4 says; an empty segment counts as one.
func removeDots(path string) string {
	segments := strings.Split(path, "/")
	kept := segments[:0:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".", "..":
			if s == ".." && len(kept) > 1 {
				kept = kept[:len(kept)-1]
			}
			if last {
				kept = append(kept, "") // "/a/.." is "/", not ""
			}
		default:
			kept = append(kept, s)
		}
	}
	if len(kept) == 1 {
		kept = append(kept, "")
	}
	return strings.Join(kept, "/")
}
