package registry

import (
	"net/url"
	"path"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// matchTable has a remote, a Local group, a CRD's group that also has a remote version, and a
// protected group that a remote claims.
func matchTable(t testing.TB, o Options, extra ...*apiregistrationv1.APIService) *Table {
	t.Helper()
	in := manyRemotes(0)
	in.Options = &o
	local := func(group, version string) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
			Spec:       apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 100},
		}
	}
	for _, a := range append([]*apiregistrationv1.APIService{
		remoteService("metrics.k8s.io", "v1beta1", "metrics"),
		remoteService("mixed.example.com", "v1", "mixed"),
		local("mixed.example.com", "v1alpha1"),
		local("apps", "v1"),
		local("", "v1"),
		remoteService("batch", "v2", "evil"),
		remoteService(apiregistration, "v1", "evil"),
	}, extra...) {
		in.APIServices[a.Name] = a
	}
	return Build(in, nil)
}

func TestMatch(t *testing.T) {
	const remote, local, document, own, invalid, refused = RouteRemote, RouteLocal, RouteDocument, RouteOwn, RouteInvalid, RouteRefused
	for _, tc := range []struct {
		path  string
		route Route
		entry string
		group string
	}{
		{path: "/apis/metrics.k8s.io/v1beta1", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/a%2Fb", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1//nodes", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/a..b", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/...", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/a%252e%252e", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/v1beta2/nodes", route: local},
		{path: "/apis/metrics.k8s.io/v1beta1x", route: local},
		{path: "/apis/metrics.k8s.io", route: document, group: "metrics.k8s.io"},
		{path: "/apis/metrics.k8s.io/", route: document, group: "metrics.k8s.io"},
		{path: "/apis/mixed.example.com/v1alpha1/things", route: local, entry: "v1alpha1.mixed.example.com"},
		{path: "/apis/mixed.example.com/v1/things", route: remote, entry: "v1.mixed.example.com"},
		{path: "/apis/unknown.example.com", route: local},
		{path: "/apis/a", route: local},
		{path: "/apis/unknown.example.com/v1/things", route: local},
		{path: "/apis/apps/v1/deployments", route: local, entry: "v1.apps"},
		{path: "/apis/batch/v2/jobs", route: refused, entry: "v2.batch"},
		{path: "/apis/batch/v1/jobs", route: local},
		{path: "/apis/" + apiregistration + "/v1/apiservices", route: local, entry: "v1." + apiregistration},
		{path: "/apis", route: document},
		{path: "/apis/", route: document},
		{path: "/api", route: document},
		{path: "/api/", route: document},
		{path: "/api/v1/pods", route: local, entry: "v1."},
		{path: "/api/v", route: local, entry: "v1."},
		{path: "/api/v1/namespaces/default/services/a:b/proxy/../..", route: local, entry: "v1."},
		{path: "/apix", route: local},
		{path: "/apisx/metrics.k8s.io/v1beta1", route: local},
		{path: "/openapi/v2", route: document},
		{path: "/openapi/v2/", route: local},
		{path: "/openapi/v3", route: document},
		{path: "/openapi/v3/apis/metrics.k8s.io/v1beta1", route: document},
		{path: "/openapi/v3/apis/apps/v1", route: local},
		{path: "/openapi/v3/apis/" + apiregistration + "/v1", route: local},
		{path: "/openapi/v4", route: local},
		{path: "/fairlead", route: own},
		{path: "/fairlead/status", route: own},
		{path: "/fairleadx", route: local},
		{path: "/", route: local},
		{path: "/healthz", route: local},
		{path: "/.well-known/openid-configuration", route: local},
		{path: "/%61/x//y/../z", route: local},
		{path: "/version/../healthz", route: local},
		{path: "/%61x/apis/metrics.k8s.io/v1beta1", route: local}, // no reading begins with a root
		{path: "/%66airleadx", route: local},
		{path: "/x/./apis", route: local},
		{path: "/x!", route: local},
		{path: "/api;x/v1/pods", route: local}, // plain: the local apiserver cuts no parameters
		{path: "/api/v1/p%6Fds", route: local, entry: "v1."},
		{path: "/openapi/v3/apis/a/v1/x/%79", route: local},
		{path: "/fairlead/%61", route: own},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes%2Fa", route: remote, entry: "v1beta1.metrics.k8s.io"},

		{path: "", route: invalid},
		{path: "*", route: invalid},
		{path: "apis/metrics.k8s.io/v1beta1", route: invalid},
		{path: "//apis/metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: "/apis//metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: "/apis/metrics.k8s.io//v1beta1/nodes", route: invalid},
		{path: "/./apis/metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: "/api/v1/../../apis/metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: "/api/v1/%2e%2e/%2E./apis/metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: `/x\y/z/../../apis/metrics.k8s.io/v1beta1/nodes`, route: invalid}, // only some servers see y
		{path: "/apis/metrics.k8s.io/v1beta1/../../apps/v1/deployments", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/namespaces/a/../b/pods", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/x%2F..%2Fy", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/x%5C..%5Cy", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/%2e%2E", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/..;x", route: invalid},
		{path: "/a/b/..;x/../apis/metrics.k8s.io/v1beta1/nodes", route: invalid}, // only some servers see x
		{path: "/%66airlead/status", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/..", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/%2/..", route: invalid}, // %2/ is not an escape: its slash counts
		{path: "/apis/metrics%2Ek8s.io/v1beta1/nodes", route: invalid},
		{path: "/apis%2Fmetrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: "/%61pis/metrics.k8s.io/v1beta1/nodes", route: invalid},
		{path: `/apis\metrics.k8s.io\v1beta1/nodes`, route: invalid},
		{path: `/apis/metrics.k8s.io/v1beta1/x\..\y`, route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1#/nodes", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1?/nodes", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/a#b/status", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/nodes/a%23b/status", route: remote, entry: "v1beta1.metrics.k8s.io"},
		{path: "/api/v1/nodes/a#b/status", route: local, entry: "v1."},
		{path: "/x/%", route: local},
		{path: "/x/%2", route: local},
		{path: "/fairlead/../api/v1/secrets", route: invalid},
		{path: "/apis/batch/v1/../v2/jobs", route: invalid},
		{path: "/x\r\n/y", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/a b", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/a\x00", route: invalid},
		{path: "/apis/metrics.k8s.io/v1beta1/a\x7f", route: invalid},
		// A selecting segment with two readings is refused, even if both lead to the local
		// apiserver.
		{path: "/%61pi/v1/pods", route: invalid},
		{path: "/api/v1/../v1/pods", route: invalid},
		{path: "/apis//v1/x", route: invalid},
		{path: "/openapi/v3/apis/metrics.k8s.io/v1bet%611", route: invalid},
	} {
		m := matchTable(t, Options{}).Match(tc.path)
		name := ""
		if m.Entry != nil {
			name = m.Entry.Name
		}
		if m.Route != tc.route || name != tc.entry || m.Group != tc.group {
			t.Errorf("Match(%q) = %v %q %q, want %v %q %q", tc.path, m.Route, name, m.Group, tc.route, tc.entry, tc.group)
		}
	}
}

// A core group of a remote, an own apiregistration group (Directory), and a table that nobody has
// built, which leaves everything to the local apiserver.
func TestMatchOtherTables(t *testing.T) {
	core := remoteService("", "v1", "core")
	unprotected := matchTable(t, Options{ProtectedGroups: []string{}}, core)
	// If core is protected, it is refused: the local apiserver's own aggregator would forward it to
	// the remote.
	protected := matchTable(t, Options{}, core)
	directory := matchTable(t, Options{Directory: true}, core)
	for _, tc := range []struct {
		table *Table
		path  string
		want  Route
	}{
		{unprotected, "/api", RouteRemote},
		{unprotected, "/api/", RouteRemote},
		{unprotected, "/api/v1/pods", RouteRemote},
		{unprotected, "/api/v2/pods", RouteRemote},
		{unprotected, "/openapi/v3/api/v1", RouteDocument},
		{protected, "/api", RouteRefused},
		{protected, "/api/v1/secrets", RouteRefused},
		{directory, "/apis/apiregistration.k8s.io", RouteOwn},
		{directory, "/apis/apiregistration.k8s.io/v1", RouteOwn},
		{directory, "/apis/apiregistration.k8s.io/v1/apiservices", RouteOwn},
		{directory, "/apis/apiregistration.k8s.iox/v1", RouteLocal},
		{directory, "/apis/apiregistration.k8s.io/../apps/v1", RouteInvalid},
		{directory, "/apis/batch/v2/jobs", RouteLocal},
		{directory, "/api/v1/secrets", RouteLocal},
		{directory, "/api", RouteDocument},
		{directory, "/openapi/v3/apis/apiregistration.k8s.io/v1", RouteDocument},
		{directory, "/openapi/v3/apis/apiregistration.k8s.iox/v1", RouteLocal},
		{directory, "/openapi/v3/apis/apiregistration.k8s.io/v1/", RouteLocal},
		{directory, "/openapi/v3/apis/apiregistration.k8s.io/", RouteLocal},
		{new(Table), "/apis/apiregistration.k8s.io/v1", RouteLocal},
		{new(Table), "/openapi/v3/apis/apiregistration.k8s.io/v1", RouteLocal},
		{new(Table), "/api/v1/pods", RouteLocal},
	} {
		m := tc.table.Match(tc.path)
		if m.Route != tc.want || tc.table == unprotected && m.Route == RouteRemote && m.Entry.Name != "v1." {
			t.Errorf("Match(%q) = %+v, want %v", tc.path, m, tc.want)
		}
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	table := matchTable(t, Options{})
	for _, p := range []string{
		"/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/nodes/a%2Fb", "/api/v1/pods", "/apis", "/apis/apps", "/version",
		"/%61" + strings.Repeat("/", 1000), "/apis/a/b/c/../" + strings.Repeat("%2e./", 1000), "/openapi/v3/" + strings.Repeat("/", 1000),
	} {
		if n := testing.AllocsPerRun(100, func() { table.Match(p) }); n != 0 {
			t.Errorf("Match(%q) allocates %v times", p, n)
		}
	}
}

// TestOddPathCost: an odd path of any form is scanned only once, not once for every possible
// reading.
func TestOddPathCost(t *testing.T) {
	for _, part := range []string{"/", "%61", "/..", `\`, "%2F.", "a/../", "#", "/%2e%2e", "apis/"} {
		p := "/%61" + strings.Repeat(part, 240_000/len(part))
		if o := findOddity(p); o.steps == 0 || o.steps > len(p) {
			t.Errorf("%.20q: %d steps for %d bytes", p, o.steps, len(p))
		}
	}
}

// servers are the ways in which real servers read a path, written independently of the code under
// test.
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
	table := matchTable(f, Options{})
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
