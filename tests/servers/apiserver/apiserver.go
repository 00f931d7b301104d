// Package apiserver is a kube-apiserver for reflectors: it lists and watches the objects that a test puts into it.
package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Paths of the collections.
const (
	APIServices = "/apis/apiregistration.k8s.io/v1/apiservices"
	Services    = "/api/v1/services"
	Slices      = "/apis/discovery.k8s.io/v1/endpointslices"
	ConfigMaps  = "/api/v1/namespaces/kube-system/configmaps"
	Namespaces  = "/api/v1/namespaces"
)

// Object is an object of a collection.
type Object interface {
	metav1.Object
	runtime.Object
}

// Server is an http.Handler. Use New.
type Server struct {
	mu        sync.Mutex // guards the fields below
	resources map[string]map[string]Object
	events    []event
	wake      chan struct{} // closed when events grows or the server breaks its connections
	broken    bool          // every request gets 500 and every watch ends
	starting  bool          // every request gets 404, as from an apiserver that is not ready
}

type event struct {
	resource string
	kind     string
	object   Object
}

// New makes a server with empty collections, without those listed.
func New(without ...string) *Server {
	s := &Server{resources: map[string]map[string]Object{APIServices: {}, Services: {}, Slices: {}, ConfigMaps: {}, Namespaces: {}}, wake: make(chan struct{})}
	for _, p := range without {
		delete(s.resources, p)
	}
	return s
}

// Start serves until the test ends, and returns a client configuration.
func (s *Server) Start(t testing.TB) *rest.Config {
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return &rest.Config{Host: h.URL, QPS: -1}
}

// kindOf returns the kind of a collection's objects.
func kindOf(path string) schema.GroupVersionKind {
	return map[string]schema.GroupVersionKind{
		APIServices: apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), Services: corev1.SchemeGroupVersion.WithKind("Service"),
		Slices: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), ConfigMaps: corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		Namespaces: corev1.SchemeGroupVersion.WithKind("Namespace"),
	}[path]
}

func pathOf(o Object) string {
	switch o.(type) {
	case *apiregistrationv1.APIService:
		return APIServices
	case *corev1.Service:
		return Services
	case *discoveryv1.EndpointSlice:
		return Slices
	case *corev1.Namespace:
		return Namespaces
	}
	return ConfigMaps
}

// Put stores objects and notifies the watches.
func (s *Server) Put(objects ...Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		path, name, kind := pathOf(o), o.GetNamespace()+"/"+o.GetName(), "ADDED"
		o.GetObjectKind().SetGroupVersionKind(kindOf(path))
		if s.resources[path][name] != nil {
			kind = "MODIFIED"
		}
		s.resources[path][name] = o
		s.tellLocked(event{path, kind, o})
	}
}

// Drop deletes an object, named namespace/name, from a collection and notifies the watches.
func (s *Server) Drop(path, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.resources[path][name]
	delete(s.resources[path], name)
	s.tellLocked(event{path, "DELETED", o})
}

func (s *Server) tellLocked(e event) {
	e.object.SetResourceVersion(strconv.Itoa(len(s.events) + 1))
	s.events = append(s.events, e)
	s.wakeLocked()
}

func (s *Server) wakeLocked() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// Fault makes requests fail with 500 (broken) or with 404 (starting), or serves them again.
func (s *Server) Fault(broken, starting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.starting = broken, starting
	s.wakeLocked()
}

// ServeHTTP lists or watches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	_, served := s.resources[r.URL.Path]
	broken, starting := s.broken, s.starting
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case broken:
		http.Error(w, "{}", http.StatusInternalServerError)
	case !served || starting:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Query().Get("sendInitialEvents") != "":
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case r.URL.Query().Get("watch") != "":
		s.serveWatch(w, r)
	default:
		_, _ = w.Write(s.list(r.URL.Path, r.URL.Query().Get("fieldSelector")))
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (s *Server) list(path, field string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []Object{}
	for _, o := range s.resources[path] {
		if field == "" || field == "metadata.name="+o.GetName() {
			items = append(items, o)
		}
	}
	kind := kindOf(path)
	return encode(map[string]any{
		"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
		"metadata": metav1.ListMeta{ResourceVersion: strconv.Itoa(len(s.events))}, "items": items,
	})
}

func encode(o any) []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}

func (s *Server) serveWatch(w http.ResponseWriter, r *http.Request) {
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for {
		_ = http.NewResponseController(w).Flush() // send the head first
		s.mu.Lock()
		var out []byte
		for ; next < len(s.events); next++ {
			if e := s.events[next]; e.resource == r.URL.Path {
				out = append(out, encode(map[string]any{"type": e.kind, "object": e.object})...)
			}
		}
		wake, broken := s.wake, s.broken || s.starting
		s.mu.Unlock()
		if broken {
			return
		}
		if len(out) > 0 {
			if _, err := w.Write(out); err != nil {
				return
			}
			continue
		}
		select {
		case <-wake:
		case <-r.Context().Done():
			return
		}
	}
}
