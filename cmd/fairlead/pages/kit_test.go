package pages

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/registry/documents/openapi"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const refused = "failing or missing response from https://127.0.0.7:8443/apis/bad.example.com/v1: bad status from https://127.0.0.7:8443/apis/bad.example.com/v1: 403"

// stand is Pages over a real registry and a real proxy.
type stand struct {
	*Pages
	dir      string
	registry *registry.Registry
	draining atomic.Bool
}

// newStand has an APIService that is good, one whose endpoint is bad, one whose Service is lost,
// and one that is closed for maintenance. A policy may be added.
func newStand(t *testing.T, policy ...string) *stand {
	t.Helper()
	s := &stand{dir: t.TempDir()}
	for group, annotations := range map[string]string{"good": "", "bad": "", "closed": `fairlead.dev/maintenance: "back <b>at nine</b>"`} {
		s.write(t, group, annotations)
	}
	apiService, _, _ := strings.Cut(manifests.Remote("lost.example.com", "", ""), "---")
	must.Do(t, os.WriteFile(filepath.Join(s.dir, "lost.yaml"), []byte(strings.Replace(apiService, "groupPriorityMinimum: 100", "groupPriorityMinimum: 200", 1)), 0o600))
	file := ""
	for _, text := range policy {
		file = filepath.Join(t.TempDir(), "policy.yaml")
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	}
	s.registry = must.Get(registry.New(registry.Config{Directory: s.dir, Policy: file}))(t)
	door, pools := newDoor(t, s.registry)
	s.Pages = New(s.sources(door, pools))
	must.Run(t, s.registry.Run)
	must.Run(t, s.Run)
	s.await(t, 4, true)
	for _, e := range s.registry.Table().Servers() { // as a prober would
		if len(e.Endpoints) > 0 {
			report := registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: e.Endpoints[0].Address, Health: registry.Healthy}}
			if strings.HasSuffix(e.Name, "bad.example.com") {
				report.Health, report.Reason, report.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, refused
			}
			s.registry.Report(report)
		}
	}
	s.await(t, 4, false)
	return s
}

// sources are what the pages of a stand show.
func (s *stand) sources(door *proxy.Proxy, pools *backend.Pools) Config {
	good := documents.Freshness{Name: "v1.good.example.com", Reason: "too_large", Message: "33554433 bytes", Confirmed: time.Now().Add(-90*time.Minute - 30*time.Second)}
	return Config{
		Registry: s.registry, Proxy: door, Backends: pools, Ready: &health.Checks{Draining: &s.draining},
		Process: func() *answer.Status {
			return &answer.Status{
				Checks: []answer.Check{}, Version: "v1.2.3", Replica: "node-7", Cluster: "prod-1", Certificates: []certs.Status{{Use: "serving", Source: "tls.crt"}}, Handshakes: []string{"3 TLS handshakes failed"},
			}
		},
		Endpoint: func(name string, e *answer.Endpoint) {
			e.Probed, e.ProbeSeconds = time.Now().Add(-90*time.Second), .002
			switch name {
			case "v1.bad.example.com":
				e.Probed, e.ProbeSeconds, e.ProbeError = time.Now().Add(-3*time.Second), .012, "failing or missing response from https://a: bad status: 403"
			case LocalName:
				e.Release, e.Clients, e.Only = "v1.37.2", 3, []string{"fresh.example.com/v1"}
			}
		},
		Tap: http.NotFoundHandler(),
		LocalServers: func() []registry.Endpoint {
			return []registry.Endpoint{{Address: "10.0.0.1:6443", Health: registry.Healthy}}
		},
		Trust: func() []trust.Status { return []trust.Status{{APIService: "local-apiserver", Source: "kubeconfig"}} },
		Discovery: func() []discovery.Status {
			return []discovery.Status{{Freshness: good, Resources: 3}, {Freshness: documents.Freshness{Name: "v1.gone.example.com"}}}
		},
		OpenAPI: func() []openapi.Status {
			return []openapi.Status{{Freshness: documents.Freshness{Name: "v1.good.example.com", Confirmed: time.Now()}, V3: true}}
		},
	}
}

// write writes the manifests of an APIService with one endpoint, at once.
func (s *stand) write(t *testing.T, name, annotations string) {
	t.Helper()
	temporary := filepath.Join(s.dir, "."+name)
	must.Do(t, os.WriteFile(temporary, []byte(manifests.Remote(name+".example.com", "127.0.0.7", annotations)), 0o600))
	must.Do(t, os.Rename(temporary, filepath.Join(s.dir, name+".yaml")))
}

// await waits until a number of APIServices of extension servers is in the table, each with a
// verdict unless some may be unprobed.
func (s *stand) await(t *testing.T, n int, unprobed bool) {
	t.Helper()
	must.Soon(t, 10*time.Second, "the expected table", func() bool {
		found := 0
		for _, e := range s.registry.Table().Entries() {
			if !e.Local() && (unprobed || e.Verdict.Status != "") {
				found++
			}
		}
		return found == n && s.registry.Table().Complete()
	})
}
