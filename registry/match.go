package registry

// Route is the kind of place that a path leads to.
type Route uint8

// The routes. RouteLocal is the zero value: what nothing else claims belongs to the local apiserver.
const (
	// RouteLocal goes to the local apiserver.
	RouteLocal Route = iota
	// RouteRemote goes to Match.Entry's backend.
	RouteRemote
	// RouteDocument is a merged document that Fairlead answers itself: /api, /apis, /apis/, /apis/<group>, /openapi/v2, /openapi/v3[/…].
	RouteDocument
	// RouteOwn is one of Fairlead's own pages below /fairlead/.
	RouteOwn
	// RouteInvalid is a path that, decoded or cleaned by whoever receives it, would select something else than it does as written. It is
	// answered with 400 and forwarded to nobody.
	RouteInvalid
	// RouteRefused is a group-version that Match.Entry may not serve: a remote claims a protected group.
	RouteRefused
)

// Match is where a path leads.
type Match struct {
	Route Route
	// Entry is set for RouteRemote and RouteRefused, and for RouteLocal when an APIService names the group-version. Else nil.
	Entry *Entry
	// Group is set for RouteDocument of /apis/<group>.
	Group string
}
