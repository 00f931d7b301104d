package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// localServer is an apiserver with core v1 and gvs.
func localServer(t *testing.T, gvs ...string) *httptest.Server {
	t.Helper()
	var groups []string
	for _, gv := range gvs {
		group, version, _ := strings.Cut(gv, "/")
		groups = append(groups, fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":%q,"version":%q}]}`, group, gv, version))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			fmt.Fprint(w, `{"kind":"APIVersions","apiVersion":"v1","versions":["v1"]}`)
		case "/apis":
			fmt.Fprintf(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[%s]}`, strings.Join(groups, ","))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestDirectoryBeforeAnAPIServer(t *testing.T) {
	server := localServer(t, "apps/v1", "apiregistration.k8s.io/v1", "a.io/v1", "crd.example.com/v1", "batch/v3")
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	write(t, file, manifestsOf("a.io", "127.0.0.1"))
	r := running(t, Config{Directory: dir, Client: &rest.Config{Host: server.URL}})
	table := until(t, r, "the local groups", func(t *Table) bool { return t.named("v1.apps") != nil })
	var got []string
	for _, e := range table.Entries() {
		kind := "remote"
		if e.Local() {
			kind = e.Object.Labels["kube-aggregator.kubernetes.io/automanaged"]
		}
		got = append(got, e.Name+" "+kind)
	}
	want := "v1. onstart, v1.apps onstart, v3.batch onstart, v1.crd.example.com true, v1.a.io remote"
	if strings.Join(got, ", ") != want {
		t.Errorf("entries %q, want %s", got, want)
	}
	p := table.Problems()
	if len(p) != 1 || p[0].File != file || p[0].Line != 1 || !strings.Contains(p[0].Message, `the local apiserver serves it too, and service/a-io in "x" claims it`) {
		t.Errorf("problems %v", p)
	}
	if m := table.Match("/apis/a.io/v1/things"); m.Route != RouteRemote {
		t.Errorf("the manifest does not take precedence: %+v", m)
	}
	write(t, file, `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a.io, annotations: {fairlead.dev/url: "https://a.example.com"}},
  spec: {group: a.io, version: v1, groupPriorityMinimum: 100, versionPriority: 10}}`)
	until(t, r, "the URL, which the directory may name", func(t *Table) bool {
		e, p := t.named("v1.a.io"), t.Problems()
		return len(e.Endpoints) == 1 && e.Endpoints[0].Address == "a.example.com:443" && len(p) == 1 && strings.Contains(p[0].Message, `and url "https://a.example.com" claims it`)
	})
}

func TestDirectoryWithoutItsAPIServer(t *testing.T) {
	server := localServer(t)
	server.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifestsOf("a.io", "127.0.0.1"))
	r := running(t, Config{Directory: dir, Client: &rest.Config{Host: server.URL}})
	table := until(t, r, "the directory", (*Table).Complete)
	if address(table, "v1.a.io") == "" {
		t.Errorf("table %s", show(table))
	}
}
