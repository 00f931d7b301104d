//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// alarm makes alerts fire and clear.
type alarm struct {
	alerts      []string
	labels      map[string]string // of the expected alerts, besides their names
	before      string            // an expression that must have a result first; empty: none
	fire, clear func()
}

type prometheus struct{ address string }

// testFire lets a real Prometheus scrape a Fairlead with a ServiceAccount's token, and makes alerts
// of every kind of series fire and clear. promtool tests all alerts.
func testFire(t *testing.T, w *world, token string) {
	serving := func(name string, lasts time.Duration) cluster.Pair {
		return must.Get(w.PKI.Serving.Issue(name, cluster.Leaf{User: name, Names: []string{name + ".example.com"}, NotAfter: time.Now().Add(lasts)}))(t)
	}
	const long = 9 * 24 * time.Hour // too long for any alert
	spare, broken := serving("spare", long), serving("broken", long)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: "alarmed", Args: []string{
		"--tls-sni-cert-key=" + spare.CertFile + "," + spare.KeyFile, "--tls-sni-cert-key=" + broken.CertFile + "," + broken.KeyFile,
	}}))(t)
	p := startPrometheus(t, w, token, front.Admin)
	dead, failing := w.serve(t, "alarm-dead", nil), w.serve(t, "alarm-failing", nil)
	half := w.serveTwo(t, "alarm-half", "10.79.0.11", "10.79.0.12")
	t.Cleanup(w.load(t, front, widgetsOf("alarm-failing")))
	set := func(s *extension.Server, faults ...extension.Fault) func() {
		return func() { must.Do(t, s.Set(faults...)) }
	}
	for _, a := range []alarm{
		{
			[]string{"KubeAggregatedAPIErrors", "KubeAggregatedAPIDown", "FairleadAPIServiceDown", "FairleadDiscoveryStale"},
			map[string]string{"name": "v1.alarm-dead.example.com"},
			`aggregator_unavailable_apiservice{name="v1.alarm-dead.example.com"} == 0`, // the counter counts transitions
			set(dead, extension.Fault{Kind: extension.Dead}), set(dead),
		},
		{
			[]string{"FairleadEndpointDown"}, map[string]string{"name": "v1.alarm-half.example.com", "endpoint": "10.79.0.12:8443"},
			`fairlead_endpoint_healthy{endpoint="10.79.0.12:8443"} == 1`,
			set(half, extension.Fault{Kind: extension.Dead}), set(half),
		},
		{
			[]string{"FairleadCertificateExpiring"}, map[string]string{"source": spare.CertFile},
			`fairlead_certificate_expiration_timestamp_seconds{source="` + spare.CertFile + `"}`,
			func() { serving("spare", 48*time.Hour) }, func() { serving("spare", long) },
		},
		{
			[]string{"FairleadReloadFailing"}, map[string]string{"source": broken.CertFile},
			`fairlead_certificate_reload_valid{source="` + broken.CertFile + `"} == 1`,
			func() { suite.Put(t, broken.CertFile, "no certificate") }, func() { serving("broken", long) },
		},
		{
			[]string{"FairleadBackendErrors"}, map[string]string{"group": "alarm-failing.example.com", "version": "v1"},
			`aggregator_unavailable_apiservice{name="v1.alarm-failing.example.com"} == 0`,
			set(failing, extension.Fault{Kind: extension.Status, Code: 500, Path: widgetsOf("alarm-failing")}), set(failing),
		},
		{
			[]string{"FairleadDown"}, nil, "", front.Part.Kill, func() { must.Do(t, front.Part.Restart(t.Context())) },
		},
	} {
		t.Run(a.alerts[0], func(t *testing.T) {
			if a.before != "" {
				p.knows(t, a.before)
			}
			p.await(t, a, false)
			a.fire()
			p.await(t, a, true)
			a.clear()
			p.await(t, a, false)
		})
	}
}

// startPrometheus runs Prometheus with the shipped alerts, shortened so that minutes become
// seconds: without `for`, and with ranges of 5 s, which are five scrapes, or 30 s for the range of
// hours in steps. Nothing else is changed, and every series is real.
func startPrometheus(t *testing.T, w *world, token string, admin cluster.Endpoint) *prometheus {
	t.Helper()
	dir := t.TempDir()
	r := shippedRules(t)
	ranges, steps := regexp.MustCompile(`\[\d+[mh]\]`), regexp.MustCompile(`\[\d+h:\d+m\]`)
	for _, g := range r.Groups {
		for i := range g.Rules {
			rule := &g.Rules[i]
			if rule.Alert != "" {
				rule.For = "0s"
			}
			rule.Expr = steps.ReplaceAllString(ranges.ReplaceAllString(rule.Expr, "[5s]"), "[30s:1s]")
		}
	}
	writeRules(t, filepath.Join(dir, "rules.yaml"), r)
	must.Do(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600))
	p := &prometheus{address: freeAddress(t)}
	must.Do(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: fairlead
    scheme: https
    authorization: {credentials_file: token}
    tls_config: {ca_file: %s}
    static_configs: [{targets: [%q]}]
`, admin.CAFile, strings.TrimPrefix(admin.URL, "https://")), 0o600))
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: "prometheus",
		Args:  []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + p.address},
		Ready: func(ctx context.Context) error { _, err := p.firing(ctx); return err },
	}))(t)
	return p
}

// await waits until the alerts of a fire, or no longer do.
func (p *prometheus) await(t *testing.T, a alarm, want bool) {
	t.Helper()
	suite.Eventually(t, 90*time.Second, fmt.Sprintf("%v %v firing: %v", a.alerts, a.labels, want), func() (bool, string) {
		list, err := p.firing(t.Context())
		fires := map[string]bool{}
		for _, is := range list {
			fits := slices.Contains(a.alerts, is["alertname"])
			for label, value := range a.labels {
				fits = fits && is[label] == value
			}
			if fits {
				fires[is["alertname"]] = true
			}
		}
		return err == nil && len(fires) == map[bool]int{true: len(a.alerts)}[want], fmt.Sprint(list, err)
	})
}

// knows waits until an expression has a result: Prometheus must see the initial state before
// something is broken.
func (p *prometheus) knows(t *testing.T, expr string) {
	t.Helper()
	var body struct {
		Data struct {
			Result []json.RawMessage
		}
	}
	suite.Eventually(t, 90*time.Second, expr, func() (bool, string) {
		err := ask.JSON(t.Context(), "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr), &body)
		return err == nil && len(body.Data.Result) > 0, fmt.Sprint(body, err)
	})
}

// firing returns the labels of the firing alerts.
func (p *prometheus) firing(ctx context.Context) ([]map[string]string, error) {
	var body struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := ask.JSON(ctx, "http://"+p.address+"/api/v1/alerts", &body); err != nil {
		return nil, err
	}
	var list []map[string]string
	for _, a := range body.Data.Alerts {
		if a.State == "firing" {
			list = append(list, a.Labels)
		}
	}
	return list, nil
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
