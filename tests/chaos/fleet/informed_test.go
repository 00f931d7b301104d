//go:build e2e

package fleet

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// informed counts what informers ask for.
type informed struct{ lists, tooLarge atomic.Int64 }

func (i *informed) wrap(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if q := r.URL.Query(); r.Method == http.MethodGet && (!q.Has("watch") || q.Has("sendInitialEvents")) {
			i.lists.Add(1)
		}
		res, err := next.RoundTrip(r)
		if err == nil && res.StatusCode == http.StatusGatewayTimeout {
			i.tooLarge.Add(1)
		}
		return res, err
	})
}

// inform starts informers, each with a connection of its own, and waits until they know all.
func (w *world) inform(t *testing.T) *informed {
	t.Helper()
	seen, stop := &informed{}, make(chan struct{})
	t.Cleanup(func() { close(stop) })
	for i, of := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "namespaces"},
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, {Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
	} {
		config := w.front.RESTConfig(w.Admin())
		config.UserAgent, config.Dial = fmt.Sprintf("informer-%d", i), (&net.Dialer{}).DialContext
		config.Wrap(seen.wrap)
		f := informers.NewSharedInformerFactory(must.Get(kubernetes.NewForConfig(config))(t), 0)
		must.Get(f.ForResource(of))(t).Informer()
		f.Start(stop) // ends with the test
		f.WaitForCacheSync(stop)
	}
	return seen
}
