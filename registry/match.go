package registry

import (
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
	// RouteDocument is a merged document that Fairlead serves itself: /api, /apis, /apis/,
	// /apis/<group>, /openapi/v2, /openapi/v3 and /openapi/v3/<path> of a remote group-version, and
	// /apis/<group>/<version> of one that several servers have.
	RouteDocument
	// RouteOwn is one of Fairlead's own pages below /fairlead, and with the dir: registry, where
	// Fairlead serves it itself, everything below /apis/apiregistration.k8s.io.
	RouteOwn
	// RouteInvalid is a path that could select something else after a receiver has decoded or
	// cleaned it. It is answered with 400 and never forwarded.
	RouteInvalid
	// RouteRefused is one that Match.Entry may not serve: a remote claims a protected group.
	RouteRefused
	// RouteHidden is one that the policy hides: it is answered as if nothing were there.
	RouteHidden
)

// Match is the result of Table.Match.
type Match struct {
	// Route says who serves the path.
	Route Route
	// Entry is set for RouteRemote, RouteRefused and RouteHidden, and for RouteLocal if an APIService names it.
	Entry *Entry
	// Group is set for RouteDocument of /apis/<group>.
	Group string
}

// Match says who serves a path. The path must be that of the request line, escaped and without
// query, and the same bytes must be forwarded. Match does not allocate. It reads each byte at most
// twice, and the first few segments once more, however the path is written.
//
// A receiver of the path may decode and clean it first: Go's servers decode, others also merge
// slashes, resolve dot segments and treat backslashes as slashes. If that could change what the
// path selects, it is RouteInvalid, so that the backend serves what was authorized here.
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

// toward returns the Match for requests of an entry.
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
