//go:build e2e

package fleet

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

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
	for i, of := range []func(informers.SharedInformerFactory) cache.SharedIndexInformer{
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Core().V1().ConfigMaps().Informer()
		},
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Core().V1().Secrets().Informer()
		},
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Core().V1().Nodes().Informer()
		},
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Core().V1().Namespaces().Informer()
		},
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Coordination().V1().Leases().Informer()
		},
		func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
			return f.Resource().V1().ResourceClaims().Informer()
		},
	} {
		config := w.front.RESTConfig(w.Admin())
		config.UserAgent, config.Dial = fmt.Sprintf("informer-%d", i), (&net.Dialer{}).DialContext
		config.Wrap(seen.wrap)
		f := informers.NewSharedInformerFactory(must.Get(kubernetes.NewForConfig(config))(t), 0)
		go of(f).Run(stop) // ends with the test
		f.WaitForCacheSync(stop)
	}
	return seen
}
