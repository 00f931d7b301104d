//go:build e2e

package differential

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// scripted is an extension server of one group-version. Its resources can be changed while it runs,
// and it can be killed and restarted. Like metrics-server, it serves only get and list.
type scripted struct {
	group, version string
	address        string
	pair           tls.Certificate
	ca             *pki.CA

	mu        sync.Mutex // guards the fields below
	resources []string
	server    *httptest.Server // nil while the server is dead
	instead   http.HandlerFunc // answers for OpenAPI. Nil means a document of the resources
	asked     time.Time        // time of the last request for /apis
}

// script starts a server and registers it. A nil openAPI means a document of the resources.
func (w *world) script(t *testing.T, name, group string, openAPI http.HandlerFunc, resources ...string) *scripted {
	t.Helper()
	ca := pki.NewCA(name)
	pair := ca.Issue(pki.Leaf{CommonName: name, Names: []string{name + ".backends.svc"}})
	s := &scripted{group: group, version: "v1", pair: pair.TLS(), ca: ca, resources: resources, address: "127.0.0.1:0", instead: openAPI}
	s.start(t)
	t.Cleanup(s.kill)
	w.register(t, name, s.address, ca, map[string]priority{group + "/v1": {100, 100}})
	return s
}

func (s *scripted) start(t *testing.T) {
	t.Helper()
	l := must.Get(net.Listen("tcp", s.address))(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = l.Addr().String()
	s.server = &httptest.Server{Listener: l, EnableHTTP2: true, Config: &http.Server{Handler: s}, TLS: &tls.Config{Certificates: []tls.Certificate{s.pair}}}
	s.server.StartTLS()
}

func (s *scripted) kill() {
	s.mu.Lock()
	server := s.server
	s.server = nil
	s.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Close()
	}
}

func (s *scripted) add(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources = append(s.resources, resource)
}

// describe replaces the server's OpenAPI handler. Nil means a document of the resources.
func (s *scripted) describe(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instead = h
}

func (s *scripted) kinds() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.resources...)
}

// quiet reports whether the last request for /apis is so long ago that the next one is due to
// polling alone.
func (s *scripted) quiet() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.asked) > 3*time.Second, s.asked.String()
}

type object = map[string]any

func kindOf(resource string) string {
	one := strings.TrimSuffix(resource, "s")
	return strings.ToUpper(one[:1]) + one[1:]
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gv := s.group + "/" + s.version
	say := func(contentType string, o object) {
		body, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	}
	if r.URL.Path == "/apis" {
		s.mu.Lock()
		s.asked = time.Now()
		s.mu.Unlock()
	}
	s.mu.Lock()
	instead := s.instead
	s.mu.Unlock()
	switch path := r.URL.Path; {
	case instead != nil && strings.HasPrefix(path, "/openapi/"):
		instead(w, r)
	case path == "/apis":
		say("application/json"+asV2, s.discovery())
	case path == "/apis/"+gv:
		say("application/json", object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv, "resources": []object{}})
	case path == "/openapi/v3":
		say("application/json", object{"paths": object{"apis/" + gv: object{"serverRelativeURL": fmt.Sprintf("/openapi/v3/apis/%s?hash=%d", gv, len(s.kinds()))}}})
	case path == "/openapi/v3/apis/"+gv:
		say("application/json", s.schema())
	case strings.HasPrefix(path, "/apis/"+gv+"/"):
		resource := path[strings.LastIndex(path, "/")+1:]
		say("application/json", object{"kind": kindOf(resource) + "List", "apiVersion": gv, "metadata": object{}, "items": []object{
			{"kind": kindOf(resource), "apiVersion": gv, "metadata": object{"name": "the-only-one", "namespace": "default"}},
		}})
	default:
		http.NotFound(w, r)
	}
}

func (s *scripted) discovery() object {
	var resources []object
	for _, r := range s.kinds() {
		resources = append(resources, object{
			"resource": r, "scope": "Namespaced", "singularResource": strings.TrimSuffix(r, "s"), "verbs": []string{"get", "list"},
			"responseKind": object{"group": s.group, "version": s.version, "kind": kindOf(r)},
		})
	}
	return object{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": object{}, "items": []object{
		{"metadata": object{"name": s.group}, "versions": []object{{"version": s.version, "freshness": "Current", "resources": resources}}},
	}}
}

func (s *scripted) schema() object {
	paths, schemas := object{}, object{}
	for _, r := range s.kinds() {
		kind := object{"group": s.group, "version": s.version, "kind": kindOf(r)}
		paths["/apis/"+s.group+"/"+s.version+"/namespaces/{namespace}/"+r+"/{name}"] = object{"get": object{
			"operationId": "read" + kindOf(r), "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": kind,
			"responses": object{"200": object{"description": "OK", "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/" + kindOf(r)}}}}},
		}}
		schemas[kindOf(r)] = object{"type": "object", "description": kindOf(r) + " is one of the script.", "x-kubernetes-group-version-kind": []object{kind},
			"properties": object{"spec": object{"type": "object", "description": "What it should be."}}}
	}
	return object{"openapi": "3.0.0", "info": object{"title": "script", "version": "v0"}, "paths": paths, "components": object{"schemas": schemas}}
}
