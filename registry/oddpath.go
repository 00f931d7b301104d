package registry

import (
	"encoding/hex"
	"strings"
)

// shape is the result of inspect.
type shape uint8

const (
	plainPath shape = iota
	// oddPath is a path that receivers that decode or clean it may read differently.
	oddPath
	// brokenPath is not a path of a valid request.
	brokenPath
)

// inspect reads every byte of a path once. All receivers read a plain path in the same way.
func inspect(path string) shape {
	if path == "" || path[0] != '/' {
		return brokenPath
	}
	found, last := plainPath, byte(0)
	for i := range len(path) {
		c := path[i]
		switch {
		case c <= ' ' || c == 0x7f:
			// No server accepts a control byte or a space. From an HTTP/2 client, it could split a request in HTTP/1.1.
			return brokenPath
		case c == '%' || c == '\\' || c == '#' || c == '?' || last == '/' && (c == '/' || c == '.'):
			found = oddPath
		}
		last = c
	}
	return found
}

// oddity is what one pass over an odd path finds. Servers decode a path or not, treat backslashes as slashes (IIS,
// browsers), cut it at an unexpected fragment or query, cut parameters off its segments, so that "..;" is ".." (Java
// servers), merge slashes (nginx, path.Clean), and resolve dot segments with merging and without (RFC 3986 §5.2.4). We
// do not try each of these readings: there are many, and strangers can send long paths. Instead a segment ends wherever
// any server would end it, and depth counts only the segments that every server sees.
type oddity struct {
	settled int // slashes before the part that no longer selects anything
	slashes int
	depth   int
	length  int     // of the current segment, decoded
	dots    int     // in it
	text    [8]byte // its first bytes; no root is longer
	soft    bool    // it began after something other than a plain slash
	named   bool    // a segment other than a dot segment has ended

	odd    bool // the part that selects can be read in more than one way
	dotted bool // there is a dot segment
	cut    bool // there is a fragment
	climbs bool // a dot segment reaches the part that selects
	first  bool // the first segment is a root
	root   bool // some segment is a root
}

// findOddity reads every byte of a path once.
func findOddity(path string) oddity {
	o := oddity{settled: settledAfter(path), slashes: 1}
	for i := 1; i < len(path); i++ {
		c, separates, plain := path[i], false, false
		if c == '\\' && c == path[i-1] {
			continue // another one adds nothing
		}
		switch c {
		case '/':
			separates, plain = true, true
			o.odd = o.odd || o.length == 0 && o.slashes < o.settled
		case '\\', '#', '?', ';':
			separates, o.cut = true, o.cut || c == '#'
		case '%':
			if b, ok := unescape(path, i); ok {
				i += 2
				c, separates = b, b == '/' || b == '\\'
			}
			o.odd = o.odd || o.slashes < o.settled
		}
		if !separates {
			o.add(c)
			continue
		}
		o.odd = o.odd || !plain && o.slashes < o.settled
		if o.length > 0 { // else merged, or a segment: it does not count
			o.end(plain)
		}
		if o.soft = !plain; plain {
			o.slashes++
		}
	}
	if o.length > 0 {
		o.end(true)
	}
	return o
}

// add adds a decoded byte to the segment.
func (o *oddity) add(c byte) {
	if c == '.' {
		o.dots++
	}
	if o.length < len(o.text) {
		o.text[o.length] = c
	}
	o.length++
}

// end ends the segment, at a plain slash or at a byte that only some servers treat as one.
func (o *oddity) end(plain bool) {
	switch {
	case o.dots == o.length && o.dots <= 2:
		o.dotted = true
		o.depth -= o.dots - 1
		o.climbs = o.climbs || o.depth < o.settled-1
	default:
		root := o.length <= len(o.text) && isRoot(string(o.text[:o.length]))
		o.first = o.first || root && !o.named
		o.root = o.root || root
		o.named = true
		if plain && !o.soft {
			o.depth++
		}
	}
	o.length, o.dots = 0, 0
}

// strays reports whether some server could read the path as one that leads elsewhere than m. A path
// that can only be the local apiserver's is passed on unjudged, byte for byte. For all others a dot
// segment is refused outright: no Kubernetes object is named "." or "..", and a backend that
// resolves it would serve another object than the authorized one. So would one that cuts a
// fragment: the object instead of its subresource. No request target has one (RFC 9110 §7.1).
func (o *oddity) strays(m Match) bool {
	if m.Route != RouteLocal {
		return o.odd || o.dotted || o.cut
	}
	return o.odd && o.first || o.climbs && o.root
}

// isRoot reports whether paths that begin with the segment may not be the local apiserver's.
func isRoot(segment string) bool {
	return segment == "apis" || segment == "api" || segment == "openapi" || segment == "fairlead"
}

// settledAfter returns how many slashes precede the part of a path that no longer selects anything.
// Escapes and empty segments are normal there, for example %2F in a name.
func settledAfter(path string) int {
	root, _, _ := strings.Cut(path[1:], "/")
	switch root {
	case "apis":
		return 4 // /apis/<group>/<version>/
	case "api":
		return 3 // one entry has all of it, except that /api/ is a document
	case "openapi":
		return 7 // /openapi/v3/apis/<group>/<version> is a document, a path with another segment is not
	}
	return 2
}

// unescape decodes the escape at path[i]. It reports whether there is one.
func unescape(path string, i int) (byte, bool) {
	var b [1]byte
	if i+2 >= len(path) {
		return 0, false
	}
	_, err := hex.Decode(b[:], []byte(path[i+1:i+3]))
	return b[0], err == nil
}
