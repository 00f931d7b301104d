package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

const (
	aggregatedJSON  = "application/json" + aggregatedParams
	aggregatedProto = "application/vnd.kubernetes.protobuf" + aggregatedParams
)

func TestMain(m *testing.M) { scene.Main(m) }

// stage is a Discovery in a scene.
type stage struct {
	*scene.Scene
	alone   bool                                                     // without a local apiserver
	own     bool                                                     // the server "own" answers for this process
	servers []string                                                 // the local apiservers, if they have names
	leave   map[string]context.CancelFunc                            // :: name of one
	only    atomic.Pointer[map[schema.GroupVersionResource][]string] // what not all of them serve
	known   atomic.Pointer[[]string]                                 // those that get clients
	unready atomic.Pointer[string]                                   // one of them, if any
	d       *Discovery
	metrics *prometheus.Registry
}

func newStage(tb testing.TB) *stage {
	s := &stage{Scene: scene.New(tb), leave: make(map[string]context.CancelFunc)}
	s.Input.Options.ProtectedGroups = []string{"protected.example.com"}
	return s
}

// inBubble runs play on a new stage in a synctest bubble.
func inBubble(t *testing.T, play func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) { play(t, newStage(t)) })
}

// open runs the Discovery until the test ends.
func (s *stage) open(cfg Config) {
	s.Helper()
	s.make(cfg)
	must.Run(s, s.d.Run)
}

func (s *stage) make(cfg Config) {
	s.Helper()
	s.metrics = prometheus.NewRegistry()
	cfg.Config = s.Config()
	cfg.Metrics = s.metrics
	if len(s.servers) > 0 {
		cfg.Each = s.each
		cfg.Ready = func(server string) bool { return server != *cmp.Or(s.unready.Load(), new(string)) }
	}
	cfg.Only = func(_ string, known []string, by map[schema.GroupVersionResource][]string) {
		s.known.Store(&known)
		s.only.Store(&by)
	}
	if s.alone {
		cfg.Local = nil
	}
	if s.own {
		cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
	}
	s.d = New(cfg)
	from := http.NewServeMux()
	from.Handle("/", s.d)
	from.Handle("/metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	s.From, s.Built = from, s.d.Touch
}

// resources is a version with some resources.
func resources(version string, names ...string) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, n := range names {
		words := strings.Split(n, ":")
		r := apidiscoveryv2.APIResourceDiscovery{Resource: words[0], Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: &metav1.GroupVersionKind{Kind: words[0]}, Verbs: []string{"list"}}
		if len(words) > 1 {
			r.ResponseKind.Kind, r.Verbs = words[1], words[2:]
			if len(r.Verbs) > 0 && r.Verbs[0] == "cluster" {
				r.Scope, r.Verbs = apidiscoveryv2.ScopeCluster, r.Verbs[1:]
			}
		}
		v.Resources = append(v.Resources, r)
	}
	return v
}

// listOf parses words of the form group/version=resource,resource.
func listOf(words ...string) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for _, w := range words {
		gv, names, _ := strings.Cut(w, "=")
		group, version, _ := strings.Cut(gv, "/")
		v := resources(version, strings.FieldsFunc(names, func(r rune) bool { return r == ',' })...)
		at := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == group })
		if at < 0 {
			at = len(list.Items)
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}})
		}
		list.Items[at].Versions = append(list.Items[at].Versions, v)
	}
	return list
}

// serving answers with aggregated documents as kube-apiserver does, of which one address is known.
func serving(list *apidiscoveryv2.APIGroupDiscoveryList, address ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api" && !strings.Contains(r.Header.Get("Accept"), "apidiscovery") {
			versions := metav1.APIVersions{Versions: []string{"v1"}}
			for _, a := range address {
				versions.ServerAddressByClientCIDRs = append(versions.ServerAddressByClientCIDRs, metav1.ServerAddressByClientCIDR{ServerAddress: a})
			}
			_ = json.NewEncoder(w).Encode(versions)
			return
		}
		answer := list
		if r.URL.Path == "/api" {
			answer = listOf("/v1=pods")
		}
		b, _ := json.Marshal(answer)
		w.Header().Set("Etag", strconv.Quote(negotiate.Hash(b)))
		if r.Header.Get("If-None-Match") == strconv.Quote(negotiate.Hash(b)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", aggregatedJSON)
		_, _ = w.Write(b)
	}
}

// legacyServing serves only APIResourceLists, and answers other requests with code.
func legacyServing(code int, words ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, word := range words {
			gv, names, _ := strings.Cut(word, "=")
			if r.URL.Path != "/apis/"+gv {
				continue
			}
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
			for name := range strings.SplitSeq(names, ",") {
				name, scope, _ := strings.Cut(name, ":")
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: name, Namespaced: scope == "", Verbs: []string{"list"}})
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		w.WriteHeader(code)
	}
}

// hanging never answers.
func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func saying(code int, contentType string, b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = w.Write(b)
	}
}
