package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

func TestMain(m *testing.M) {
	// Kubernetes' own implementation, which ours is compared with, logs each group-version.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const aggregatedJSON = "application/json" + aggregatedParams

// stage is a Discovery among servers that are functions: all of it fits into a synctest bubble.
type stage struct {
	testing.TB
	in      registry.Input
	table   atomic.Pointer[registry.Table]
	d       *Discovery
	metrics *prometheus.Registry

	mu       sync.Mutex // guards what follows
	local    *server
	backends map[string]*server // :: Service → its server
}

// server answers as a test wants it to.
type server struct {
	handle http.HandlerFunc // nil: nobody is there
	asked  []string         // what came: path, Accept, If-None-Match
}

func newStage(tb testing.TB) *stage {
	s := &stage{TB: tb, backends: map[string]*server{}, local: &server{}}
	s.in = registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{}, Services: map[types.NamespacedName]*corev1.Service{},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{}, Options: &registry.Options{ProtectedGroups: []string{"protected.example.com"}}, Complete: true,
	}
	s.build()
	return s
}

// open makes the Discovery and runs it until the test ends.
func (s *stage) open(cfg Config) {
	s.Helper()
	s.make(cfg)
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- s.d.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.Errorf("Run: %v", err)
		}
	})
}

func (s *stage) make(cfg Config) {
	s.Helper()
	s.metrics = prometheus.NewRegistry()
	cfg.Table, cfg.Logger, cfg.Metrics = s.table.Load, slog.New(slog.DiscardHandler), s.metrics
	cfg.Fetch = func(_ context.Context, e *registry.Entry, r *http.Request) (*http.Response, error) {
		return s.answer(s.server(e.Backend.Service), r)
	}
	cfg.FetchLocal = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.answer(s.local, r) }
	var err error
	if s.d, err = New(cfg); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) server(name string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backends[name] == nil {
		s.backends[name] = &server{}
	}
	return s.backends[name]
}

func (s *stage) set(to *server, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.handle = h
}

func (s *stage) questions(of *server) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := of.asked
	of.asked = nil
	return out
}

func (s *stage) answer(of *server, r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	h := of.handle
	of.asked = append(of.asked, strings.TrimSpace(r.URL.Path+" "+r.Header.Get("If-None-Match")))
	s.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	h(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	res := rec.Result()
	res.Body = &body{Reader: res.Body}
	return res, nil
}

// body is a response's body.
type body struct{ io.Reader }

func (b *body) Close() error { return nil }

// build makes the next table.
func (s *stage) build(reports ...registry.Report) {
	s.in.Reports, s.in.Now = reports, time.Now()
	s.table.Store(registry.Build(s.in, s.table.Load()))
	if s.d != nil {
		s.d.touch() // the table of a test cannot supersede another
	}
}

// claim adds an APIService. An empty service makes it Local.
func (s *stage) claim(gv, service string, group, version int32) {
	g, v, _ := strings.Cut(gv, "/")
	o := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: v + "." + g}, Spec: apiregistrationv1.APIServiceSpec{
		Group: g, Version: v, GroupPriorityMinimum: group, VersionPriority: version,
	}}
	if service != "" {
		o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: service}
		o.Spec.InsecureSkipTLSVerify = true
		name := types.NamespacedName{Namespace: "x", Name: service}
		port, ready := int32(8443), true
		s.in.Services[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: service}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}},
		}}
		if s.in.Slices[name] == nil {
			s.in.Slices[name] = []*discoveryv1.EndpointSlice{{
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Name: new(string)}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			}}
		}
	}
	s.in.APIServices[o.Name] = o
	s.build()
}

// report tells the table what a probe has found.
func (s *stage) report(name string, health registry.Health) {
	s.Helper()
	for _, e := range s.table.Load().Entries() {
		if e.Name == name {
			s.build(registry.Report{Name: name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: health, Reason: registry.ReasonFailedDiscoveryCheck, Message: "no"})
			return
		}
	}
	s.Fatalf("no entry %s", name)
}

// resources makes a version of some resources.
func resources(version string, names ...string) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, n := range names {
		v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: n, Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: &metav1.GroupVersionKind{Kind: n}, Verbs: []string{"list"}})
	}
	return v
}

// listOf makes a document of lines such as group/version=resource,resource.
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

// serving answers with aggregated documents as kube-apiserver does.
func serving(list *apidiscoveryv2.APIGroupDiscoveryList) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api" && !strings.Contains(r.Header.Get("Accept"), "apidiscovery") {
			_ = json.NewEncoder(w).Encode(metav1.APIVersions{Versions: []string{"v1"}})
			return
		}
		answer := list
		if r.URL.Path == "/api" {
			answer = listOf("/v1=pods")
		}
		b, _ := json.Marshal(answer)
		w.Header().Set("Etag", tagOf(b))
		if r.Header.Get("If-None-Match") == tagOf(b) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", aggregatedJSON)
		_, _ = w.Write(b)
	}
}

// legacyServing knows APIResourceLists only, and answers 404, or another code, to whoever asks for more.
func legacyServing(code int, words ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, word := range words {
			gv, names, _ := strings.Cut(word, "=")
			if r.URL.Path != "/apis/"+gv {
				continue
			}
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
			for name := range strings.SplitSeq(names, ",") {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: name, Namespaced: true, Verbs: []string{"list"}})
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

// get asks the Discovery itself.
func (s *stage) get(path string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.Context(), http.MethodGet, path, nil)
	if header != nil {
		r.Header = header
	}
	w := httptest.NewRecorder()
	s.d.ServeHTTP(w, r)
	return w
}

// show writes what clients see, a line per group-version, and what the operator does.
func (s *stage) show() string {
	s.Helper()
	w := s.get("/apis", http.Header{"Accept": {aggregatedJSON}})
	if w.Code != http.StatusOK {
		return fmt.Sprintf("%d %s\n", w.Code, bytes.TrimSpace(w.Body.Bytes()))
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	if err := json.Unmarshal(w.Body.Bytes(), list); err != nil {
		s.Fatal(err)
	}
	var b strings.Builder
	for _, g := range list.Items {
		for _, v := range g.Versions {
			fmt.Fprintf(&b, "%s/%s %s", g.Name, v.Version, v.Freshness)
			for _, r := range v.Resources {
				b.WriteString(" " + r.Resource)
			}
			b.WriteByte('\n')
		}
	}
	for _, st := range s.d.Status() {
		fmt.Fprintf(&b, "status %s %s", st.Name, st.Reason)
		switch age := time.Since(st.Confirmed); {
		case st.Confirmed.IsZero():
		case age <= time.Minute+time.Second: // whatever the jitter was
			b.WriteString(" confirmed")
		default:
			b.WriteString(" confirmed long ago")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// crdService makes an APIService of a CRD.
func crdService(group, version string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: version, GroupPriorityMinimum: crdGroupPriority, VersionPriority: crdVersionPriority,
	}}
}

// versions are those of a document, by name.
func versions(words []string) map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery {
	out := map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}
	list := listOf(words...)
	for i := range list.Items {
		g := &list.Items[i]
		for j := range g.Versions {
			out[schema.GroupVersion{Group: g.Name, Version: g.Versions[j].Version}] = &g.Versions[j]
		}
	}
	return out
}
