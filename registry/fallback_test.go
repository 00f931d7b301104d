package registry

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// ranked is a cluster's APIService, of service/theirs or Local.
func ranked(group string, priority int32, remote bool) *apiregistrationv1.APIService {
	a := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: "v1", GroupPriorityMinimum: priority, VersionPriority: 10,
	}}
	if remote {
		a.Spec.Service, a.Spec.CABundle = &apiregistrationv1.ServiceReference{Namespace: "x", Name: "theirs"}, []byte("not for us")
	}
	return a
}

// kindsOf lists the entries in order.
func kindsOf(t *Table) string {
	var got []string
	for _, e := range t.Entries() {
		got = append(got, e.Name+" "+e.Kind())
	}
	return strings.Join(got, ", ")
}

func TestDirectoryBesideCluster(t *testing.T) {
	server := apiserver.New()
	url := ranked("url.io", 3, true)
	url.Annotations = map[string]string{urlAnnotation: "https://theirs.example.com"}
	server.Put(ranked("apps", 17800, false), ranked("low.io", 2, true), ranked("a.io", 5, true), url)
	own, elsewhere := types.NamespacedName{Namespace: "x", Name: "a-io"}, types.NamespacedName{Namespace: "x", Name: "elsewhere"}
	server.Put(clusterIP(own), slice(own, "10.0.0.9"), clusterIP(elsewhere), slice(elsewhere, "10.0.0.2"))
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	write(t, file, manifestsOf("a.io", "10.0.0.1"))
	write(t, filepath.Join(dir, "b.yaml"), `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.b.io},
  spec: {group: b.io, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {namespace: x, name: elsewhere}}}`)
	write(t, filepath.Join(dir, "loop.yaml"), manifestsOf("loop.io", "127.0.0.1"))

	server.Fault(true, false)
	metrics := prometheus.NewPedanticRegistry()
	r := running(t, Config{Directory: dir, Client: server.Start(t), Cluster: true, Metrics: metrics})
	if r.Table().Complete() {
		t.Error("complete before the cluster was read")
	}
	server.Fault(false, false)
	table := until(t, r, "both", (*Table).Complete)
	const want = "v1.apps local, v1.a.io remote, v1.b.io remote, v1.loop.io remote, v1.url.io local, v1.low.io local"
	check.Same(t, want, kindsOf(table), "entries")
	// The directory's own Service takes precedence; without one, the cluster's is used.
	if a, b := address(table, "v1.a.io"), address(table, "v1.b.io"); a != "10.0.0.1:8443" || b != "10.0.0.2:8443" {
		t.Errorf("endpoints %q and %q", a, b)
	}
	if e := table.named("v1.loop.io"); len(e.Endpoints) != 0 {
		t.Errorf("loopback is allowed with a cluster, whose slices others write: %+v", e)
	}
	if p := table.Problems(); len(p) != 1 || p[0].File != file || !strings.Contains(p[0].Message, `the local apiserver serves it too, and service/a-io in "x" claims it`) {
		t.Errorf("problems %v", p)
	}
	// That problem, and the loopback address.
	const counted = "# HELP fairlead_registry_problems Faults of APIServices and of their source that are worked around and should be fixed.\n" +
		"# TYPE fairlead_registry_problems gauge\nfairlead_registry_problems 2\n"
	must.Do(t, testutil.GatherAndCompare(metrics, strings.NewReader(counted), "fairlead_registry_problems"))
	if m := table.Match("/apis/low.io/v1/things"); m.Route != RouteLocal {
		t.Errorf("a group that the cluster's aggregator serves: %+v", m)
	}

	// Conditions that the cluster's aggregator writes change nothing here.
	noted := ranked("low.io", 2, true)
	noted.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse}}
	server.Put(noted, ranked("new.io", 4, true))
	next := until(t, r, "a new one", func(t *Table) bool { return t.named("v1.new.io") != nil })
	if e := next.named("v1.low.io"); e != table.named("v1.low.io") || !e.Verdict.Available() {
		t.Errorf("a condition changed %+v", e)
	}
	server.Drop(apiserver.APIServices, "/v1.new.io")
	until(t, r, "it is gone", func(t *Table) bool { return t.named("v1.new.io") == nil })

	must.Do(t, os.Remove(file))
	table = until(t, r, "the cluster's", func(t *Table) bool { return t.named("v1.a.io").Local() })
	if p := table.Problems(); len(p) != 0 || table.named("v1.a.io").Object.Spec.GroupPriorityMinimum != 5 {
		t.Errorf("problems %v, %+v", p, table.named("v1.a.io").Object)
	}
}

// forbid makes an apiserver answer 403 for collections, as kube-apiserver does without permission.
// One that does not stream lists refuses that first, for another reason.
func forbid(c *rest.Config, streams bool, paths ...string) {
	c.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) {
			if !slices.Contains(paths, r.URL.Path) || !streams && r.URL.Query().Has("sendInitialEvents") {
				return next.RoundTrip(r)
			}
			return answer(r, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"forbidden","reason":"Forbidden","code":403}`), nil
		})
	}
}

func TestDirectoryBesideClusterWithoutItsServices(t *testing.T) {
	server := apiserver.New()
	server.Put(ranked("theirs.io", 5, true))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), manifestsOf("a.io", "10.0.0.1"))
	client := server.Start(t)
	forbid(client, false, apiserver.Services, apiserver.Slices)
	r := startDirectory(t, dir, Config{Client: client, Cluster: true})
	if got := kindsOf(r.Table()); got != "v1.a.io remote, v1.theirs.io local" || address(r.Table(), "v1.a.io") == "" {
		t.Errorf("entries %q", got)
	}
}

// What may not be read from the start counts as empty, even if the refusal has no message. A
// permission that is revoked later takes nothing away.
func TestDenied(t *testing.T) {
	forbidden := func(message string) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden, Message: message}}
	}
	for _, tc := range []struct {
		name    string
		answers []error
		want    int
	}{
		{"from the start", []error{forbidden("no"), forbidden("no")}, 1},
		{"without a message", []error{forbidden(""), forbidden("")}, 1},
		{"later", []error{nil, forbidden("no")}, 0},
	} {
		got := 0
		l := &lister{log: slog.New(slog.DiscardHandler), denied: func() { got++ }}
		for _, err := range tc.answers {
			l.note(t.Context(), err)
		}
		check.Same(t, tc.want, got, "%s: times denied", tc.name)
	}
}

func TestStoredBesideCluster(t *testing.T) {
	for _, tc := range []struct{ name, directory, want, problem string }{
		{"only its Services", "", "v1.a.io remote", ""},
		{"cluster", "", "v1.apps local, v1.a.io remote, v1.theirs.io local", "APIService v1.a.io: the cluster has one, too, which is ignored: etcd's counts"},
		{"directory and cluster", manifestsOf("theirs.io", "10.0.0.1") + "---\n" + manifestsOf("a.io", "10.0.0.1"), "v1.apps local, v1.a.io remote, v1.theirs.io remote", "APIService v1.a.io: the directory has one, too, which is ignored: etcd's counts"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server, local := apiserver.New(), apiserver.New()
			server.Put(stored("a.io", "one"))
			name := types.NamespacedName{Namespace: "x", Name: "one"}
			local.Put(ranked("apps", 17800, false), ranked("a.io", 5, true), ranked("theirs.io", 4, true), clusterIP(name), slice(name, "10.0.0.3"))
			c := Config{APIServices: server.Start(t), Client: defining(t, local, map[string]string{"boats.a.io": "v1"}), Cluster: tc.problem != ""}
			if tc.directory != "" {
				c.Directory = t.TempDir()
				write(t, filepath.Join(c.Directory, "a.yaml"), tc.directory)
			}
			r := running(t, c)
			table := until(t, r, "all", (*Table).Complete)
			check.Same(t, "10.0.0.3:8443", address(table, "v1.a.io"), "address of the cluster's Service")
			until(t, r, "what is hidden", func(t *Table) bool {
				return strings.Contains(strings.Join(t.named("v1.a.io").Problems, ""), "it hides CustomResourceDefinition boats.a.io")
			})
			check.Same(t, tc.want, kindsOf(table), "entries")
			last := ""
			for _, p := range table.Problems() {
				last = p.String()
			}
			check.Same(t, tc.problem, last, "the last problem")
			m := &remembered{path: filepath.Join(t.TempDir(), "cache")}
			must.Do(t, m.write(table.Entries()))
			if list, err := m.read(); err != nil || len(list.Items) != 1 || list.Items[0].Name != "v1.a.io" {
				t.Errorf("the cache keeps %v: %v", list, err)
			}
		})
	}
}

func TestBesideNoCluster(t *testing.T) {
	if _, err := New(Config{Directory: t.TempDir(), Cluster: true}); err == nil || !strings.Contains(err.Error(), "there is no local apiserver") {
		t.Error(err)
	}
	if _, err := New(Config{Directory: t.TempDir(), Cluster: true, Client: &rest.Config{Host: "http://a b"}}); err == nil {
		t.Error("no error for an invalid client configuration")
	}
}
