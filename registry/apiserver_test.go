package registry

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// apiserver lists and watches objects as kube-apiserver does, as far as a reflector looks.
type apiserver struct {
	*httptest.Server

	mu        sync.Mutex // guards what follows
	resources map[string]map[string]metav1.Object
	events    []event
	wake      chan struct{} // closed when events grows or the server breaks its connections
	broken    bool          // every request gets 500 and every watch ends
	starting  bool          // every request gets 404, as from an apiserver that is not ready
}

type event struct {
	resource string
	kind     string
	object   metav1.Object
}

// paths of the resources of this fake.
const (
	pathAPIServices = "/apis/apiregistration.k8s.io/v1/apiservices"
	pathServices    = "/api/v1/services"
	pathSlices      = "/apis/discovery.k8s.io/v1/endpointslices"
	pathConfigMaps  = "/api/v1/namespaces/kube-system/configmaps"
)

func newAPIServer(t *testing.T, paths ...string) *apiserver {
	s := &apiserver{resources: make(map[string]map[string]metav1.Object), wake: make(chan struct{})}
	for _, p := range paths {
		s.resources[p] = make(map[string]metav1.Object)
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *apiserver) config() *rest.Config { return &rest.Config{Host: s.URL, QPS: -1} }

// put stores an object and tells the watchers; a nil status of deletion is drop's business.
func (s *apiserver) put(objects ...metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.putLocked(o)
	}
}

func (s *apiserver) putLocked(o metav1.Object) {
	path := ""
	switch o := o.(type) {
	case *apiregistrationv1.APIService:
		path = pathAPIServices
		o.APIVersion, o.Kind = "apiregistration.k8s.io/v1", "APIService"
	case *corev1.Service:
		path = pathServices
		o.APIVersion, o.Kind = "v1", "Service"
	case *discoveryv1.EndpointSlice:
		path = pathSlices
		o.APIVersion, o.Kind = "discovery.k8s.io/v1", "EndpointSlice"
	case *corev1.ConfigMap:
		path = pathConfigMaps
		o.APIVersion, o.Kind = "v1", "ConfigMap"
	}
	name := o.GetNamespace() + "/" + o.GetName()
	kind := "ADDED"
	if s.resources[path][name] != nil {
		kind = "MODIFIED"
	}
	s.resources[path][name] = o
	s.tellLocked(event{path, kind, o})
}

func (s *apiserver) drop(path, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.resources[path][name]
	delete(s.resources[path], name)
	s.tellLocked(event{path, "DELETED", o})
}

func (s *apiserver) tellLocked(e event) {
	e.object.SetResourceVersion(strconv.Itoa(len(s.events) + 1))
	s.events = append(s.events, e)
	close(s.wake)
	s.wake = make(chan struct{})
}

// fault makes every request fail, or not.
func (s *apiserver) fault(broken, starting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken, s.starting = broken, starting
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	all, served := s.resources[r.URL.Path]
	broken, starting := s.broken, s.starting
	list := map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(s.events))}}
	items := []metav1.Object{}
	for _, o := range all {
		if field := r.URL.Query().Get("fieldSelector"); field == "" || field == "metadata.name="+o.GetName() {
			items = append(items, o)
		}
	}
	list["items"] = items
	switch {
	case strings.Contains(r.URL.Path, "apiregistration"):
		list["kind"], list["apiVersion"] = "APIServiceList", "apiregistration.k8s.io/v1"
	case strings.Contains(r.URL.Path, "discovery"):
		list["kind"], list["apiVersion"] = "EndpointSliceList", "discovery.k8s.io/v1"
	case strings.HasSuffix(r.URL.Path, "services"):
		list["kind"], list["apiVersion"] = "ServiceList", "v1"
	default:
		list["kind"], list["apiVersion"] = "ConfigMapList", "v1"
	}
	body, err := json.Marshal(list)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case err != nil || broken:
		http.Error(w, "{}", http.StatusInternalServerError)
	case !served || starting:
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
	case r.URL.Query().Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
	case r.URL.Query().Get("watch") != "":
		s.serveWatch(w, r)
	default:
		_, _ = w.Write(body)
	}
}

func (s *apiserver) serveWatch(w http.ResponseWriter, r *http.Request) {
	next, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusOK)
	for {
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		s.mu.Lock()
		var out []byte
		for ; next < len(s.events); next++ {
			e := s.events[next]
			if e.resource != r.URL.Path {
				continue
			}
			line, err := json.Marshal(map[string]any{"type": e.kind, "object": e.object})
			if err != nil {
				panic(err)
			}
			out = append(append(out, line...), '\n')
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
