package registry

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// matchTable has a remote, a Local group, a CRD's group that also has a remote version, and a
// protected group that a remote claims.
func matchTable() *Table {
	in := manyRemotes(0)
	for _, a := range []*apiregistrationv1.APIService{
		remoteService("metrics.k8s.io", "v1beta1", "metrics"),
		remoteService("mixed.example.com", "v1", "mixed"),
		remoteService("mixed.example.com", "v1alpha1", ""),
		remoteService("apps", "v1", ""),
		remoteService("", "v1", ""),
		remoteService("batch", "v2", "evil"),
		remoteService(apiregistration, "v1", "evil"),
	} {
		in.APIServices[a.Name] = a
	}
	return Build(in, nil)
}

// A table that nobody has built leaves everything to the local apiserver.
func TestMatchWithoutAllocation(t *testing.T) {
	for _, p := range []string{"/apis/apiregistration.k8s.io/v1", "/openapi/v3/apis/apiregistration.k8s.io/v1", "/api/v1/pods"} {
		check.Same(t, RouteLocal, new(Table).Match(p).Route, "%s", p)
	}
	table := matchTable()
	for _, p := range []string{
		"/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/nodes/a%2Fb", "/api/v1/pods", "/apis", "/apis/apps", "/version",
		"/%61" + strings.Repeat("/", 1000), "/apis/a/b/c/../" + strings.Repeat("%2e./", 1000), "/openapi/v3/" + strings.Repeat("/", 1000),
	} {
		check.Same(t, 0, testing.AllocsPerRun(100, func() { table.Match(p) }), "allocations of Match(%q)", p)
	}
}

// servers are the ways in which real servers read a path, written independently of the code under test.
var servers = map[string]func(string) string{
	"as written":     func(p string) string { return p },
	"Go":             decoded,
	"Go, cleaned":    func(p string) string { return cleaned(decoded(p)) },
	"cleaned":        cleaned,
	"IIS":            func(p string) string { return cleaned(strings.ReplaceAll(decoded(p), `\`, "/")) },
	"merging only":   func(p string) string { return mergedSlashes(decoded(p)) },
	"RFC 3986":       func(p string) string { return resolved(decoded(p)) },
	"RFC, undecoded": resolved,
	"fragment cut":   func(p string) string { before, _, _ := strings.Cut(p, "#"); return decoded(before) },
}

func decoded(p string) string {
	u, err := url.PathUnescape(p)
	if err != nil {
		return p // Go answers 400
	}
	return u
}

func cleaned(p string) string {
	c := path.Clean("/" + p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

func mergedSlashes(p string) string {
	for strings.Contains(p, "//") {
		p = strings.ReplaceAll(p, "//", "/")
	}
	return p
}

func resolved(p string) string {
	u, err := url.Parse("http://host/")
	if err != nil {
		return p
	}
	u.Path = p
	return u.JoinPath().Path
}

// reached returns where a server that reads the path as p sends the request.
func reached(t *Table, p string) (Route, string) {
	segments := strings.Split(p, "/")
	if len(segments) < 2 || segments[0] != "" {
		return RouteLocal, ""
	}
	switch segments = segments[1:]; segments[0] {
	case "fairlead":
		return RouteOwn, ""
	case "openapi":
		if p == "/openapi/v2" || p == "/openapi/v3" {
			return RouteDocument, ""
		}
		gv, ok := schema.GroupVersion{}, false
		switch {
		case len(segments) == 5 && segments[1] == "v3" && segments[2] == "apis":
			gv, ok = schema.GroupVersion{Group: segments[3], Version: segments[4]}, true
		case len(segments) == 4 && segments[1] == "v3" && segments[2] == "api":
			gv, ok = schema.GroupVersion{Version: segments[3]}, true
		}
		if e := t.Entry(gv); ok && e != nil && !e.Local() { // the local apiserver answers for all others
			return RouteDocument, ""
		}
	case "api":
		if p == "/api" || p == "/api/" {
			return RouteDocument, ""
		}
	case "apis":
		if p == "/apis" || p == "/apis/" {
			return RouteDocument, ""
		}
		if len(segments) == 2 || len(segments) == 3 && segments[2] == "" {
			if t.Group(segments[1]) != nil && segments[1] != "" {
				return RouteDocument, segments[1]
			}
			return RouteLocal, ""
		}
		e := t.Entry(schema.GroupVersion{Group: segments[1], Version: segments[2]})
		if segments[1] != "" && e != nil && !e.Local() {
			return RouteRemote, e.Name
		}
	}
	return RouteLocal, ""
}

func FuzzMatch(f *testing.F) {
	for _, seed := range []string{
		"/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/../../../api/v1/secrets", "/%61pis/metrics.k8s.io/v1beta1",
		`/api\..\apis/metrics.k8s.io/v1beta1`, "/apis/g//../metrics.k8s.io/v1beta1/x", "//apis", "/apis//", "/apis/mixed.example.com/v1/..",
		"/openapi/v3/%2e%2e/%2e%2e/fairlead", "/openapi/v3/", "/openapi/v3/apis/metrics.k8s.io/v1beta1", "/openapi/v3/apis/batch/v1", "/openapi/v3/apis/batch/v1/..", "/x#/../apis", "/apis/batch/v2/x%2F..%2f..%5C..", "/%2561pis/metrics.k8s.io/v1beta1", "/a/%zz/..",
		"/openapi/v3/apis/metrics.k8s.io/v1beta1/x/..", "/openapi/v3/apis/metrics.k8s.io/v1beta%31", "/api/%2F", "/api/v1/x//..", "/apis/a/b/x%5C..%5C..", "/x/y/z%2f../..//..//api",
		"/apis/metrics.k8s.io/v1beta1/a%00b", "/..", "/.", "", "/apis/.", "/apis/..", "/x//../../apis/metrics.k8s.io/v1beta1/z",
	} {
		f.Add(seed)
	}
	table := matchTable()
	f.Fuzz(func(t *testing.T, p string) {
		m := table.Match(p)
		if m.Route == RouteInvalid {
			return
		}
		claimed, name := m.Route, m.Group
		if claimed == RouteRefused {
			claimed = RouteRemote
		}
		if m.Entry != nil && claimed == RouteRemote {
			name = m.Entry.Name
		}
		if m.Entry != nil && claimed == RouteLocal {
			name = ""
		}
		for server, read := range servers {
			if route, entry := reached(table, read(p)); route != claimed || entry != name {
				t.Errorf("%q matches %v %q, but a server (%s) reads %q: %v %q", p, claimed, name, server, read(p), route, entry)
			}
		}
	})
}
