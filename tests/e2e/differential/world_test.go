//go:build e2e

package differential

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// world is a cluster with Fairlead beside its kube-apiserver.
type world struct {
	*cluster.Cluster
	front   *cluster.Front
	start   func(lane string) (*cluster.Front, error) // starts another Fairlead
	clients map[string]*http.Client                   // :: URL of a server → client of an administrator
	nulls   bool                                      // kube-apiserver writes creationTimestamp: null, as before 1.34
}

func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	dir := suite.Folder(t, "differential")
	c, binary := suite.Start(t, cluster.Config{Dir: dir}), suite.Build(t, dir)
	w := &world{Cluster: c, clients: map[string]*http.Client{}}
	w.start = func(lane string) (*cluster.Front, error) {
		return c.StartFairlead(t.Context(), cluster.Fairlead{Path: binary, Name: "fairlead-" + lane, Args: append([]string{"--http2=" + strconv.FormatBool(lane == "h2")}, args...)})
	}
	w.front = must.Get(w.start("h2"))(t)
	for _, e := range []cluster.Endpoint{c.Endpoint(), w.front.Endpoint} {
		w.clients[e.URL] = suite.Client(t, e, c.Admin())
	}
	return w
}

func (w *world) define(t *testing.T, manifest string) {
	t.Helper()
	kubectl.As(t, w.Endpoint(), w.Admin()).Feed(t, manifest, "apply", "-f", "-")
}

// eachLane runs a test over each protocol that Fairlead offers to clients, in the same cluster.
func (w *world) eachLane(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	front := must.Get(w.start("http1"))(t)
	other := *w
	other.front = front
	w.clients[front.Endpoint.URL] = suite.Client(t, front.Endpoint, w.Admin())
	t.Run("h2", func(t *testing.T) { f(t, w) })
	t.Run("http1", func(t *testing.T) { f(t, &other) })
}

func (w *world) ask(t *testing.T, e cluster.Endpoint, path string, header http.Header) ask.Reply {
	t.Helper()
	return w.send(t, http.MethodGet, e, path, header)
}

func (w *world) send(t *testing.T, method string, e cluster.Endpoint, path string, header http.Header) ask.Reply {
	t.Helper()
	return must.Get(ask.Do(t.Context(), w.clients[e.URL], method, e.URL+path, header, ""))(t)
}

// priority holds the priorities of an APIService.
type priority struct {
	group, version int32
}

// extend starts an extension server in this process and registers its group-versions, the keys of where.
func (w *world) extend(t *testing.T, name string, cfg extension.Config, where map[string]priority) {
	t.Helper()
	cfg.CA, cfg.Names, cfg.GroupVersions = w.PKI.Serving.CA, []string{name + ".backends.svc"}, slices.Collect(maps.Keys(where))
	s := extension.Start(t, cfg)
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "backends", Service: name, Port: s.Port(), CAFile: w.PKI.Serving.CertFile, GroupVersions: cfg.GroupVersions,
	}))
	admin := kubectl.As(t, w.Endpoint(), w.Admin())
	for gv, at := range where {
		group, version, _ := strings.Cut(gv, "/")
		priorities := fmt.Sprintf(`{"spec":{"groupPriorityMinimum":%d,"versionPriority":%d}}`, at.group, at.version)
		admin.Run(t, "patch", "apiservice", version+"."+group, "--type=merge", "-p", priorities)
	}
}
