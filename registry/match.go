package registry

import (
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Route says who serves a path.
type Route uint8

// The routes. RouteLocal is zero: the local apiserver serves every path that nothing else claims.
const (
	// RouteLocal goes to the local apiserver.
	RouteLocal Route = iota
	// RouteRemote goes to Match.Entry's backend.
	RouteRemote
	// RouteDocument is a merged document of Fairlead: /api, /apis, /apis/, /apis/<group>, /openapi/v2, /openapi/v3 and
	// /openapi/v3/<path> of a remote group-version, and /apis/<group>/<version> of several servers'.
	RouteDocument
	// RouteOwn is one of Fairlead's own pages below /fairlead, and with the registries dir: and etcd:, where
	// Fairlead serves it itself, everything below /apis/apiregistration.k8s.io.
	RouteOwn
	// RouteInvalid is a path that could select something else once decoded or cleaned: 400 or, without an escape, 404.
	RouteInvalid
	// RouteRefused is one that Match.Entry may not serve: a remote claims a protected group.
	RouteRefused
	// RouteHidden is one that the policy hides: it is answered as if nothing were there.
	RouteHidden
)

// Match is the result of Table.Match.
type Match struct {
	Route Route  // who serves the path
	Entry *Entry // set for RouteRemote, RouteRefused and RouteHidden, and for RouteLocal if an APIService names it
	Group string // set for RouteDocument of /apis/<group>
}

// Match says who serves a path. The path must be that of the request line, escaped and without query, and the same
// bytes must be forwarded. Match does not allocate. It reads no byte more than twice, and few segments once more.
//
// A receiver of the path may decode and clean it first: Go's servers decode, others also merge slashes, resolve dot
// segments and treat backslashes as slashes. If that could change what the path selects, it is RouteInvalid, so that
// the backend serves what was authorized here.
func (t *Table) Match(path string) Match {
	switch inspect(path) {
	case plainPath:
		return t.selects(path)
	case brokenPath:
		return Match{Route: RouteInvalid}
	}
	m := t.selects(path)
	if o := findOddity(path); o.strays(m) {
		return Match{Route: RouteInvalid}
	}
	return m
}

// selects matches a path as written.
func (t *Table) selects(path string) Match {
	if rest, ok := below(path, "/apis"); ok {
		return t.selectsGroup(rest)
	}
	if rest, ok := below(path, "/api"); ok {
		m := t.toward(t.Entry(schema.GroupVersion{Version: "v1"}))
		if m.Route == RouteLocal && len(rest) <= 1 {
			return Match{Route: RouteDocument} // /api and /api/
		}
		return m // as upstream, an APIService v1. claims all of it, even /api/v2
	}
	if rest, ok := below(path, "/openapi/v3"); ok {
		return t.selectsSchema(rest)
	}
	if path == "/openapi/v2" {
		return Match{Route: RouteDocument}
	}
	if _, ok := below(path, "/fairlead"); ok {
		return Match{Route: RouteOwn}
	}
	return Match{}
}

// below cuts the prefix root off a path. It reports whether the path is root itself or below it.
func below(path, root string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// selectsGroup matches the rest of a path after /apis.
func (t *Table) selectsGroup(rest string) Match {
	if len(rest) <= 1 {
		return Match{Route: RouteDocument} // /apis and /apis/
	}
	group, rest, _ := strings.Cut(rest[1:], "/")
	if group == apiregistration && t.options != nil && t.options.Directory {
		return Match{Route: RouteOwn}
	}
	if group == "" {
		return Match{} // the core group is not below /apis
	}
	if rest == "" {
		if g := t.Group(group); g != nil {
			return Match{Route: RouteDocument, Group: g.Name}
		}
		return Match{}
	}
	version, rest, _ := strings.Cut(rest, "/")
	e := t.Entry(schema.GroupVersion{Group: group, Version: version})
	if rest == "" && e != nil && e.united() {
		return Match{Route: RouteDocument, Group: group} // of several servers
	}
	return t.toward(e)
}

// selectsSchema matches the rest of a path after /openapi/v3. Documents of remote group-versions,
// and of those that this process serves, are served here. All others are the local apiserver's.
func (t *Table) selectsSchema(rest string) Match {
	if rest == "" {
		return Match{Route: RouteDocument}
	}
	root, rest, _ := strings.Cut(rest[1:], "/")
	gv := schema.GroupVersion{Version: rest}
	switch root {
	case "apis":
		gv.Group, gv.Version, _ = strings.Cut(rest, "/")
	case "api":
	default:
		return Match{}
	}
	if gv.Version == "" || strings.Contains(gv.Version, "/") {
		return Match{}
	}
	e := t.Entry(gv)
	if e != nil && e.Hidden != "" {
		return Match{Route: RouteHidden, Entry: e}
	}
	if e != nil && !e.Local() || gv.Group == apiregistration && t.options != nil && t.options.Directory {
		return Match{Route: RouteDocument}
	}
	return Match{}
}

func (t *Table) toward(e *Entry) Match {
	switch {
	case e != nil && e.Hidden != "":
		return Match{Route: RouteHidden, Entry: e}
	case e == nil || e.Local():
		return Match{Entry: e}
	case e.Verdict.Reason == ReasonProtectedGroup:
		return Match{Route: RouteRefused, Entry: e}
	}
	return Match{Route: RouteRemote, Entry: e}
}

type shape uint8

const (
	plainPath  shape = iota
	oddPath          // a path that receivers that decode or clean it may read differently
	brokenPath       // not a path of a valid request
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
	broken bool // there is a % that begins no escape
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
			var b [1]byte
			n, _ := hex.Decode(b[:], []byte(path[i+1:min(i+3, len(path))])) // none of what is too short, or wrong
			if o.broken = o.broken || n == 0; n == 1 {
				i += 2
				c, separates = b[0], b[0] == '/' || b[0] == '\\'
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
	if o.dots == o.length && o.dots <= 2 {
		o.dotted = true
		o.depth -= o.dots - 1
		o.climbs = o.climbs || o.depth < o.settled-1
	} else {
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

// strays reports whether some server could read the path as one that leads elsewhere than m. A path that can only be
// the local apiserver's is passed on unjudged, byte for byte. For all others a dot segment is refused: no Kubernetes
// object is named "." or "..", and a backend that resolves it would serve another object than the authorized one. So
// would one that cuts a fragment: the object instead of its subresource. No request target has one (RFC 9110 §7.1).
// A path with a broken escape is not decoded here, as Go's servers refuse it, but others decode its good escapes.
func (o *oddity) strays(m Match) bool {
	if m.Route != RouteLocal {
		return o.odd || o.dotted || o.cut || o.broken
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
	switch root, _, _ := strings.Cut(path[1:], "/"); root {
	case "apis":
		return 4 // /apis/<group>/<version>/
	case "api":
		return 3 // one entry has all of it, except that /api/ is a document
	case "openapi":
		return 7 // /openapi/v3/apis/<group>/<version> is a document, a path with another segment is not
	}
	return 2
}
