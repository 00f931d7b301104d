package discovery

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

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
	if cfg.Fetch == nil {
		cfg.Fetch = func(_ context.Context, e *registry.Entry, r *http.Request) (*http.Response, error) {
			return s.answer(s.server(e.Backend.Service), r)
		}
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
		s.d.sources.Touch() // the table of a test cannot supersede another
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

// crdService makes an APIService of a CRD.
func crdService(group, version string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: version, GroupPriorityMinimum: crdGroupPriority, VersionPriority: crdVersionPriority,
	}}
}
