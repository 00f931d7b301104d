package registry

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Route is the kind of place that a path leads to.
type Route uint8

// The routes. RouteLocal is the zero value: what nothing else claims belongs to the local apiserver.
const (
	// RouteLocal goes to the local apiserver.
	RouteLocal Route = iota
	// RouteRemote goes to Match.Entry's backend.
	RouteRemote
	// RouteDocument is a merged document that Fairlead answers itself: /api, /apis, /apis/, /apis/<group>, /openapi/v2, /openapi/v3
	// and /openapi/v3/<path> of a remote group-version.
	RouteDocument
	// RouteOwn is one of Fairlead's own pages below /fairlead, and with the dir: registry everything below
	// /apis/apiregistration.k8s.io, which Fairlead serves itself then.
	RouteOwn
	// RouteInvalid is a path that, decoded or cleaned by whoever receives it, could select something else than it does as written. It is
	// answered with 400 and forwarded to nobody.
	RouteInvalid
	// RouteRefused is a group-version that Match.Entry may not serve: a remote claims a protected group.
	RouteRefused
)

// Match is where a path leads.
type Match struct {
	// Route is the kind of place.
	Route Route
	// Entry is set for RouteRemote and RouteRefused, and for RouteLocal when an APIService names the group-version. Else nil.
	Entry *Entry
	// Group is set for RouteDocument of /apis/<group>.
	Group string
}

// Match says where a path leads. The path is the one of the request line, still escaped, without query; the
// same bytes are to be forwarded. It allocates nothing, and looks at each byte twice and at the first few
// segments once more, however the path is written.
//
// Whoever receives the path may decode and clean it before looking at it: Go's servers decode, others also
// merge slashes, resolve dot segments and take backslashes for slashes. A path that could then lead somewhere
// else is RouteInvalid, so that what was authorized here is what is served there.
//
//fairlead:loop
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

// selects says where a path leads as written.
func (t *Table) selects(path string) Match {
	if rest, ok := below(path, "/apis"); ok {
		return t.selectsGroup(rest)
	}
	if rest, ok := below(path, "/api"); ok {
		return t.selectsCore(rest)
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

// below cuts a root off a path. It holds for the root itself and for what follows it and a slash.
func below(path, root string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// selectsGroup selects by what follows /apis.
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
	version, _, _ := strings.Cut(rest, "/")
	return t.toward(t.Entry(schema.GroupVersion{Group: group, Version: version}))
}

// selectsSchema selects by what follows /openapi/v3. The documents of remote group-versions, and of what this process serves itself, are kept here; the local apiserver
// has those of all others, and answers for them itself.
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
	if e := t.Entry(gv); e != nil && !e.Local() || gv.Group == apiregistration && t.options != nil && t.options.Directory {
		return Match{Route: RouteDocument}
	}
	return Match{}
}

// selectsCore selects by what follows /api. An APIService v1. claims all of it, as upstream has it, even /api/v2.
func (t *Table) selectsCore(rest string) Match {
	m := t.toward(t.Entry(schema.GroupVersion{Version: "v1"}))
	if m.Route == RouteLocal && len(rest) <= 1 {
		return Match{Route: RouteDocument} // /api and /api/
	}
	return m
}

// toward is where an entry's requests go.
func (t *Table) toward(e *Entry) Match {
	switch {
	case e == nil || e.Local():
		return Match{Entry: e}
	case e.Verdict.Reason == ReasonProtectedGroup:
		return Match{Route: RouteRefused, Entry: e}
	}
	return Match{Route: RouteRemote, Entry: e}
}
