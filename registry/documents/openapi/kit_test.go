package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

type object = map[string]any

// stage is an OpenAPI among servers that are functions: all of it fits into a synctest bubble.
type stage struct {
	testing.TB
	cfg   documents.Config
	in    registry.Input
	table atomic.Pointer[registry.Table]
	o     *OpenAPI

	mu       sync.Mutex // guards what follows
	handlers map[string]http.HandlerFunc
	asked    map[string][]string // :: server → paths
}

const home = "home" // the local apiserver

func newStage(tb testing.TB) *stage {
	s := &stage{TB: tb, handlers: map[string]http.HandlerFunc{}, asked: map[string][]string{}}
	s.in = registry.Input{
		APIServices: map[string]*apiregistrationv1.APIService{}, Services: map[types.NamespacedName]*corev1.Service{},
		Slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{}, Options: &registry.Options{}, Complete: true,
	}
	s.table.Store(registry.Build(s.in, nil))
	s.cfg = documents.Config{
		Table: s.table.Load, Logger: slog.New(slog.DiscardHandler),
		Fetch: func(_ context.Context, e *registry.Entry, r *http.Request) (*http.Response, error) {
			return s.answer(e.Backend.Service, r)
		},
		FetchLocal: func(_ context.Context, r *http.Request) (*http.Response, error) { return s.answer(home, r) },
	}
	s.make()
	return s
}

// make makes the OpenAPI of cfg.
func (s *stage) make() {
	s.Helper()
	var err error
	if s.o, err = New(s.cfg); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) open() {
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- s.o.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.Errorf("Run: %v", err)
		}
	})
}

func (s *stage) set(server string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[server] = h
}

func (s *stage) questions(server string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked[server]
	delete(s.asked, server)
	return out
}

func (s *stage) answer(server string, r *http.Request) (*http.Response, error) {
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

// claim adds an APIService. An empty service makes it Local.
func (s *stage) claim(gv, service string) {
	group, version, _ := strings.Cut(gv, "/")
	o := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: 10,
	}}
	if service != "" {
		o.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "x", Name: service}
		name := types.NamespacedName{Namespace: "x", Name: service}
		port, ready := int32(8443), true
		s.in.Services[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: service}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}},
		}}
		s.in.Slices[name] = []*discoveryv1.EndpointSlice{{
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Name: new(string)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}}
	}
	s.in.APIServices[o.Name] = o
	s.build()
}

func (s *stage) build() {
	s.in.Now = time.Now()
	s.table.Store(registry.Build(s.in, s.table.Load()))
	s.o.sources.Touch() // the table of a test cannot supersede another
}

func (s *stage) get(path string, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.Context(), http.MethodGet, path, nil)
	if header != nil {
		r.Header = header
	}
	w := httptest.NewRecorder()
	s.o.ServeHTTP(w, r)
	return w
}

// kind is a part of a server's documents: a kind with a path and a definition.
type kind struct {
	gv, name, definition, description string
	gvks                              any
}

// define makes the kind Thing of a group-version.
func define(gv, description string) kind {
	group, version, _ := strings.Cut(gv, "/")
	return kind{gv: gv, name: "things", definition: "def." + gv, description: description, gvks: []any{object{"group": group, "version": version, "kind": "Thing"}}}
}

func specOf(kinds ...kind) object {
	paths, definitions := object{"/version/": object{"get": object{"responses": object{"200": object{"description": "OK"}}}}}, object{}
	for _, k := range kinds {
		definitions[k.definition] = object{"type": "object", "description": k.description, "x-kubernetes-group-version-kind": k.gvks}
		paths["/apis/"+k.gv+"/"+k.name] = object{"get": object{"operationId": k.gv + k.name, "responses": object{"200": object{
			"description": "OK", "schema": object{"$ref": "#/definitions/" + k.definition},
		}}}}
	}
	return object{"swagger": "2.0", "info": object{"title": "t", "version": "v"}, "paths": paths, "definitions": definitions}
}

// serving answers with all documents of some kinds.
func serving(kinds ...kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var doc any
		switch path := r.URL.Path; path {
		case "/openapi/v2":
			doc = specOf(kinds...)
		case "/openapi/v3":
			paths := object{"version": object{"serverRelativeURL": "/openapi/v3/version?hash=V"}}
			for _, k := range kinds {
				paths["apis/"+k.gv] = object{"serverRelativeURL": "/openapi/v3/apis/" + k.gv + "?hash=" + negotiate.Hash([]byte(k.description))}
			}
			doc = object{"paths": paths}
		default:
			for _, k := range kinds {
				if path == "/openapi/v3/apis/"+k.gv {
					doc = object{"openapi": "3.0.0", "info": object{"title": k.description, "version": "v"}, "paths": object{}}
				}
			}
		}
		if doc == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		b, _ := json.Marshal(doc)
		tag := fmt.Sprintf("%q", negotiate.Hash(b))
		if r.URL.Path == "/openapi/v2" {
			w.Header().Set("Etag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		_, _ = w.Write(b)
	}
}

// only lets a handler answer for one path, and the other for the rest.
func only(path string, h, rest http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			h(w, r)
			return
		}
		rest(w, r)
	}
}

func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func saying(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

// v2 returns the merged document.
func (s *stage) v2() object {
	s.Helper()
	w := s.get("/openapi/v2", nil)
	if w.Code != http.StatusOK {
		s.Fatalf("/openapi/v2: %d %s", w.Code, w.Body)
	}
	out := object{}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		s.Fatal(err)
	}
	return out
}

// index returns the paths of the v3 index.
func (s *stage) index() object {
	s.Helper()
	var out struct{ Paths object }
	w := s.get("/openapi/v3", nil)
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		s.Fatalf("/openapi/v3: %d %v", w.Code, err)
	}
	return out.Paths
}
