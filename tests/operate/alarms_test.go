//go:build e2e

package operate

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// alarms returns what makes each alert except FairleadDown fire, by the alert's name. Each has its
// own group-version.
func (w *world) alarms(t *testing.T, p *prometheus, front *cluster.Front, spare, broken cluster.Pair) map[string]alarm {
	t.Helper()
	faulty := func(name string, faults ...extension.Fault) alarm {
		s := w.serve(t, name, nil)
		return alarm{
			map[string]string{"name": "v1." + name + ".example.com"},
			// The counter counts transitions, so it must have been available before.
			`aggregator_unavailable_apiservice{name="v1.` + name + `.example.com"} == 0`,
			func(t *testing.T) { must.Do(t, s.Set(faults...)) },
			func(t *testing.T) { must.Do(t, s.Set()) },
		}
	}
	dead := extension.Fault{Kind: extension.Dead}
	return map[string]alarm{
		"KubeAggregatedAPIErrors":            faulty("alarm-errors", dead),
		"KubeAggregatedAPIDown":              faulty("alarm-unavailable", dead),
		"FairleadAPIServiceDown":             faulty("alarm-down", dead),
		"FairleadDiscoveryStale":             faulty("alarm-discovery", dead),
		"FairleadEndpointDown":               w.alarmEndpoint(t),
		"FairleadCertificateExpiring":        w.alarmExpiring(spare),
		"FairleadBackendCertificateExpiring": w.alarmBackendExpiring(t),
		"FairleadReloadFailing":              w.alarmReload(broken),
		"FairleadBackendBundleInvalid":       w.alarmBundle(t),
		"FairleadSaturated":                  w.alarmSaturated(t, front),
		"FairleadBackendErrors":              w.alarmBackendErrors(t, front),
		"FairleadEntrypointContested":        w.alarmContested(p, front),
	}
}

func (w *world) alarmEndpoint(t *testing.T) alarm {
	t.Helper()
	const name = "alarm-endpoint"
	var servers []*extension.Server
	for _, address := range []string{"10.79.0.11", "10.79.0.12"} {
		servers = append(servers, w.extension(t, name, func(c *extension.Config) { c.Address = address + ":8443" }))
	}
	w.apply(t, clusterIP(name, "")+slice(name, "{addresses: [10.79.0.11]}, {addresses: [10.79.0.12]}")+w.apiService(name, "443", ""))
	return alarm{
		map[string]string{"name": "v1." + name + ".example.com", "endpoint": "10.79.0.12:8443"},
		`fairlead_endpoint_healthy{endpoint="10.79.0.12:8443"} == 1`,
		func(t *testing.T) { must.Do(t, servers[1].Set(extension.Fault{Kind: extension.Dead})) },
		func(t *testing.T) { must.Do(t, servers[1].Set()) },
	}
}

// alarmExpiring replaces a key pair of Fairlead with one that expires in two days.
func (w *world) alarmExpiring(spare cluster.Pair) alarm {
	return alarm{
		map[string]string{"source": spare.CertFile},
		`fairlead_certificate_expiration_timestamp_seconds{source="` + spare.CertFile + `"}`,
		func(t *testing.T) { w.reissue(t, "spare", 48*time.Hour) },
		func(t *testing.T) { w.reissue(t, "spare", 9*24*time.Hour) },
	}
}

// alarmBackendExpiring does the same for a backend.
func (w *world) alarmBackendExpiring(t *testing.T) alarm {
	t.Helper()
	const name = "alarm-expiring"
	s := extension.Start(t, extension.Config{GroupVersions: []string{name + ".example.com/v1"}, Names: []string{name + ".operate.svc"}, CA: w.ca})
	lasts := func(d time.Duration) {
		s.SetPair(w.ca.Issue(pki.Leaf{CommonName: "extension", Names: []string{name + ".operate.svc"}, NotAfter: time.Now().Add(d)}))
	}
	lasts(9 * 24 * time.Hour) // before the first one is seen, which lasts a day
	w.apply(t, external(name, portOf(s))+w.apiService(name, portOf(s), ""))
	return alarm{
		map[string]string{"apiservice": "v1." + name + ".example.com", "kind": "leaf"},
		`fairlead_certificate_backend_expiration_timestamp_seconds{kind="leaf",apiservice="v1.` + name + `.example.com"}`,
		func(*testing.T) { lasts(48 * time.Hour) },
		func(t *testing.T) {
			lasts(9 * 24 * time.Hour)
			// An endpoint's certificate is remembered for five minutes, or until its APIService is
			// deleted.
			succeed(t, "", w.kubectl, "--kubeconfig", w.direct, "delete", "apiservice", "v1."+name+".example.com")
			w.apply(t, w.apiService(name, portOf(s), ""))
		},
	}
}

func (w *world) alarmReload(broken cluster.Pair) alarm {
	return alarm{
		map[string]string{"source": broken.CertFile},
		`fairlead_certificate_reload_valid{source="` + broken.CertFile + `"} == 1`,
		func(t *testing.T) { must.Do(t, os.WriteFile(broken.CertFile, []byte("no certificate"), 0o600)) },
		func(t *testing.T) { w.spare(t, "broken") },
	}
}

func (w *world) alarmBundle(t *testing.T) alarm {
	t.Helper()
	const name = "alarm-bundle"
	s := w.serve(t, name, nil)
	good := w.apiService(name, portOf(s), "")
	bad := strings.ReplaceAll(good, base64.StdEncoding.EncodeToString(w.ca.PEM()), base64.StdEncoding.EncodeToString([]byte("no certificate")))
	return alarm{
		map[string]string{"apiservice": "v1." + name + ".example.com"},
		`fairlead_certificate_backend_bundle_valid{apiservice="v1.` + name + `.example.com"} == 1`,
		func(t *testing.T) { w.apply(t, bad) },
		func(t *testing.T) { w.apply(t, good) },
	}
}

// alarmSaturated fills an APIService that may have one request in flight.
func (w *world) alarmSaturated(t *testing.T, front *cluster.Front) alarm {
	t.Helper()
	const name = "alarm-saturated"
	s := w.serve(t, name, nil)
	w.apply(t, w.apiService(name, portOf(s), `fairlead.dev/max-inflight: "1"`))
	var stop func()
	return alarm{
		map[string]string{"name": "v1." + name + ".example.com", "limit": "inflight"},
		`aggregator_unavailable_apiservice{name="v1.` + name + `.example.com"} == 0`,
		func(t *testing.T) {
			must.Do(t, s.Set(extension.Fault{Kind: extension.Hang, Path: widgetsOf(name)}))
			stop = w.load(t, front, widgetsOf(name))
		},
		func(t *testing.T) { stop(); must.Do(t, s.Set()) },
	}
}

// alarmBackendErrors makes all requests fail except discovery.
func (w *world) alarmBackendErrors(t *testing.T, front *cluster.Front) alarm {
	t.Helper()
	const name = "alarm-failing"
	s := w.serve(t, name, nil)
	var stop func()
	return alarm{
		map[string]string{"group": name + ".example.com", "version": "v1"},
		`aggregator_unavailable_apiservice{name="v1.` + name + `.example.com"} == 0`,
		func(t *testing.T) {
			must.Do(t, s.Set(extension.Fault{Kind: extension.Status, Code: 500, Path: widgetsOf(name)}))
			stop = w.load(t, front, widgetsOf(name))
		},
		func(t *testing.T) {
			must.Do(t, s.Set())
			t.Cleanup(stop) // its requests continue, and succeed
		},
	}
}

func widgetsOf(name string) string {
	return "/apis/" + name + ".example.com/v1/namespaces/default/widgets"
}

// load sends some thirty requests a second for a path until stop is called.
func (w *world) load(t *testing.T, front *cluster.Front, path string) (stop func()) {
	t.Helper()
	client := suite.Client(t, front.Endpoint, w.Admin())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		volley.Pace(ctx, time.Second/30, func(int) {
			_, _ = ask.Do(ctx, client, http.MethodGet, front.Endpoint.URL+path, nil, "") // the metrics record the result
		})
	})
	return sync.OnceFunc(func() { cancel(); running.Wait() })
}

// publishes waits until default/kubernetes has this endpoint.
func (w *world) publishes(t *testing.T, address string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, "published", func() (bool, string) {
		got := w.published(t)
		return got == address, got
	})
}

// alarmContested overwrites the endpoints of default/kubernetes that a Fairlead publishes, like a
// kube-apiserver that still publishes its own.
func (w *world) alarmContested(p *prometheus, front *cluster.Front) alarm {
	var publisher *cluster.Front
	return alarm{
		nil, "",
		func(t *testing.T) {
			w.alone.Lock()
			t.Cleanup(w.alone.Unlock)
			publisher = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "publisher", Args: []string{"--publish-kubernetes-endpoints", "--advertise-address=192.0.2.7"}}))(t)
			p.scrape(t, front.Admin, publisher.Admin)
			for range 2 {
				w.publishes(t, "192.0.2.7")
				e := must.Get(w.core.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
				e.Subsets[0].Addresses[0].IP = "192.0.2.8"
				must.Get(w.core.CoreV1().Endpoints("default").Update(t.Context(), e, metav1.UpdateOptions{}))(t)
			}
		},
		// As in the runbook: there is no other writer any more, and Fairlead is restarted, so that
		// it does not wait.
		func(t *testing.T) {
			must.Do(t, publisher.Part.Restart(t.Context()))
			w.publishes(t, "192.0.2.7")
			t.Cleanup(func() {
				p.scrape(t, front.Admin)
				publisher.Part.Kill()
			})
		},
	}
}
