// Package scene provides a table and servers that are functions, for tests of what asks backends
// and the local apiserver: all of it fits into a synctest bubble.
//
// Only the test's goroutine may use Input and Build; any may ask or change servers.
package scene

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Home is the local apiserver's name among the servers; others have their Service's name.
const Home = "home"

// Scene is a table with its servers. The table is complete, and empty at first.
type Scene struct {
	testing.TB
	Input registry.Input // what the next Build uses
	// Built is called after each Build, since tables of a test cannot supersede each other. Nil: not called.
	Built func()
	From  http.Handler // answers Get
	// Own are the steps of a package's own stories, by name, and Show what they expect.
	Own  map[string]func(words []string)
	Show func() string

	tag    string // the last response's ETag
	table  atomic.Pointer[registry.Table]
	routes routes

	mu       sync.Mutex // guards the fields below
	handlers map[string]http.HandlerFunc
	asked    map[string][]string // :: server → paths
}

// New returns a Scene without servers.
func New(tb testing.TB) *Scene {
	s := &Scene{TB: tb, handlers: map[string]http.HandlerFunc{}, asked: map[string][]string{}, routes: routes{}}
	s.Input = registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{}, Services: map[types.NamespacedName]*corev1.Service{},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{}, Options: &registry.Options{}, Complete: true,
	}
	s.Build()
	return s
}

// Config returns a configuration for documents of the scene's servers.
func (s *Scene) Config() documents.Config {
	c := documents.Config{
		Tables: s,
		From: func(e *registry.Entry) documents.Do {
			return func(_ context.Context, r *http.Request) (*http.Response, error) {
				return s.Answer(e.Backend.Service, r)
			}
		},
		Local: func(server string) documents.Do {
			return func(_ context.Context, r *http.Request) (*http.Response, error) {
				return s.Answer(cmp.Or(server, Home), r)
			}
		},
		Ready: func(string) bool { return true },
		Each:  func(ctx context.Context, f func(context.Context, string)) error { f(ctx, ""); return nil },
	}
	c.Only = untold
	return c
}

// untold is for a Config.Only that nobody listens to.
func untold[T any](string, []string, T) {}

// Set makes h answer for server. Nil: its connections are refused.
func (s *Scene) Set(server string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[server] = h
}

// Questions returns the paths that were requested from a server since the last call.
func (s *Scene) Questions(server string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked[server]
	delete(s.asked, server)
	return out
}

// Answer sends a request to a server.
func (s *Scene) Answer(server string, r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	h := s.handlers[server]
	s.asked[server] = append(s.asked[server], r.URL.Path)
	s.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	rec := httptest.NewRecorder()
	h(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

// Table returns the current table.
func (s *Scene) Table() *registry.Table { return s.table.Load() }

// Build replaces the table.
func (s *Scene) Build(reports ...registry.Report) {
	s.Input.Reports, s.Input.Now = reports, time.Now()
	s.table.Store(registry.Build(s.Input, s.table.Load()))
	if s.Built != nil {
		s.Built()
	}
}

// Claim adds an APIService. An empty service makes it Local.
func (s *Scene) Claim(gv, service string, group, version int32) {
	g, v, _ := strings.Cut(gv, "/")
	o := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: v + "." + g}, Spec: apiregistrationv1.APIServiceSpec{
		Group: g, Version: v, GroupPriorityMinimum: group, VersionPriority: version,
	}}
	if service != "" {
		o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: service}
		o.Spec.InsecureSkipTLSVerify = true
		s.serve(types.NamespacedName{Namespace: "x", Name: service})
	}
	s.Input.APIServices[o.Name] = o
	s.Build()
}

func (s *Scene) serve(name types.NamespacedName) {
	port, ready := int32(8443), true
	s.Input.Services[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}},
	}}
	if s.Input.Slices[name] == nil {
		s.Input.Slices[name] = []*discoveryv1.EndpointSlice{{
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Name: new(string)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}}
	}
}

// Get requests a path.
func (s *Scene) Get(path string, header http.Header) *httptest.ResponseRecorder {
	return s.ask(http.MethodGet, path, header)
}

func (s *Scene) ask(method, path string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.Context(), method, path, nil)
	if header != nil {
		r.Header = header
	}
	w := httptest.NewRecorder()
	s.From.ServeHTTP(w, r)
	return w
}

// Pass lets time pass in a bubble.
func (s *Scene) Pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a synctest bubble
	synctest.Wait()
}

// Heap returns the memory in use.
func Heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // objects in pools survive one collection
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// TableFunc is a latest.Tables.
type TableFunc func() *registry.Table

// Table implements latest.Tables.
func (f TableFunc) Table() *registry.Table { return f() }
