package pages

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// manifest is one remote group-version with one endpoint.
func manifest(group, annotations string) string {
	return manifests.Remote(group, "127.0.0.7", annotations)
}

const noService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.lost.example.com}
spec: {group: lost.example.com, version: v1, groupPriorityMinimum: 200, versionPriority: 1, insecureSkipTLSVerify: true, service: {namespace: x, name: nobody}}
`

// stand is Pages over a real registry and a real proxy.
type stand struct {
	*Pages
	dir      string
	registry *registry.Registry
	draining atomic.Bool
	http     *httptest.Server
}

// newDoor makes a proxy over a table.
func newDoor(t *testing.T, table func() *registry.Table) (*proxy.Proxy, *backend.Pools) {
	t.Helper()
	pools := must.Get(backend.New(backend.Config{
		Table: table, Dial: new(net.Dialer).DialContext, TLS: func(string, *registry.Backend) (*tls.Config, error) { return nil, errors.New("nobody dials here") },
	}))(t)
	who := must.Get(authn.New(authn.Config{}))(t)
	may := must.Get(authz.New(authz.Config{Review: rights}))(t)
	return must.Get(proxy.New(proxy.Config{Table: table, Authn: who, Authz: may, Backends: pools}))(t), pools
}

func newStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{dir: t.TempDir()}
	for file, text := range map[string]string{
		"good.yaml": manifest("good.example.com", ""), "bad.yaml": manifest("bad.example.com", ""), "lost.yaml": noService,
		"closed.yaml": manifest("closed.example.com", `fairlead.dev/maintenance: "back <b>at nine</b>"`),
	} {
		s.write(t, file, text)
	}
	s.registry = must.Get(registry.New(registry.Config{Directory: s.dir}))(t)
	door, pools := newDoor(t, s.registry.Table)
	s.Pages = must.Get(New(Config{
		Table: s.registry.Table, Explain: door.Explain, Draining: s.draining.Load, Version: "v1.2.3",
		Load: func(e *registry.Entry) (int64, int64, map[string]int64) { return pools.Upstream(e).Load() },
		Latencies: func(e *registry.Entry) []uint64 {
			if e.Name == "v1.good.example.com" {
				return counted(3, 3, 3, 200)
			}
			return counted()
		},
		Failed: func(*registry.Entry) uint64 { return 0 }, Replica: "node-7", Cluster: "prod-1",
		Probed: func(name, _ string) (time.Time, time.Duration, string) {
			if name == "v1.bad.example.com" {
				return time.Now().Add(-3 * time.Second), 12 * time.Millisecond, "failing or missing response from https://a: bad status: 403"
			}
			return time.Now().Add(-90 * time.Second), 2 * time.Millisecond, ""
		},
		LocalServers: func() []registry.Endpoint {
			return []registry.Endpoint{{Address: "10.0.0.1:6443", Health: registry.Healthy}}
		},
		Certificates: func() []certs.Status { return []certs.Status{{Use: "serving", Source: "tls.crt"}} },
		Trust:        func() []trust.Status { return []trust.Status{{APIService: "local-apiserver", Source: "kubeconfig"}} },
		Ready:        func() error { return nil },
		Discovery: func() []discovery.Status {
			good := documents.Freshness{Name: "v1.good.example.com", Reason: "too_large", Message: "33554433 bytes", Confirmed: time.Now().Add(-90*time.Minute - 30*time.Second)}
			return []discovery.Status{{Freshness: good, Resources: 3}, {Freshness: documents.Freshness{Name: "v1.gone.example.com"}}}
		},
		OpenAPI: func() []openapi.Status {
			return []openapi.Status{{Freshness: documents.Freshness{Name: "v1.good.example.com", Confirmed: time.Now()}, V3: true}}
		},
	}))(t)
	s.start(t)
	return s
}
