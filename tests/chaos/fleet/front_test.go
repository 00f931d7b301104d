//go:build e2e

package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

// frontPort is HAProxy's port. The network namespace is this package's own, and package cluster uses ports from 11000.
const frontPort = 10443

// point starts HAProxy in front of these servers, or again with them. All connections end.
func (w *world) point(t *testing.T, servers ...cluster.Endpoint) {
	t.Helper()
	if w.haproxy != nil {
		w.haproxy.Kill()
	}
	text := fmt.Sprintf("listen front\n    bind 127.0.0.1:%d\n", frontPort)
	for i, s := range servers {
		text += fmt.Sprintf("    server server%d %s check\n", i, strings.TrimPrefix(s.URL, "https://"))
	}
	w.haproxy = must.Get(w.StartHAProxy(t.Context(), "haproxy", text, w.front.Serves("/readyz", w.Admin())))(t)
}

const (
	rate    = 50              // how many requests start per second, whether or not earlier ones have ended
	latest  = 2 * time.Second // the time within which each must be answered: the limit is 2 s
	objects = 20              // the number of ConfigMaps that are read, written and watched
)

const path = "/api/v1/namespaces/fleet/configmaps" // their collection

// payload makes an event longer than an HTTP/2 frame, so that a broken connection would cut it.
var payload = strings.Repeat("x", 20<<10)

// newLoad returns a load that reads an object, writes one, or lists small ones.
func newLoad(clients []*http.Client, base string) *volley.Load {
	return &volley.Load{Every: time.Second / rate, Clients: clients, Again: turnedAway, Make: func(i int) (method, url, body string) {
		object := fmt.Sprintf("%s%s/object-%d", base, path, i%objects)
		switch i % 4 {
		case 1:
			return http.MethodPatch, object, fmt.Sprintf(`{"data":{"n":"%d"}}`, i)
		case 3:
			return http.MethodGet, base + "/api/v1/namespaces/fleet/serviceaccounts", ""
		}
		return http.MethodGet, object, ""
	}}
}

// turnedAway reports whether kube-apiserver itself asks for a retry after a second: it refuses requests a moment before
// it sends GOAWAY. client-go retries them (rest.withRetry), directly and through proxies. Fairlead's own answers are
// not retried here. Retries count as part of the request's time.
func turnedAway(s *volley.Shot) bool {
	return s.Code == http.StatusServiceUnavailable && strings.Contains(s.Text, `"apiserver is shutting down"`) && s.Repeated < 10 // as client-go
}
