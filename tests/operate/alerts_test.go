//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// prometheusAccount is who scrapes.
const prometheusAccount = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: prometheus}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-metrics"}
subjects: [{kind: ServiceAccount, namespace: operate, name: prometheus}]
`

func testAlerts(t *testing.T, w *world) {
	t.Run("rules", func(t *testing.T) {
		dir := t.TempDir()
		writeRules(t, filepath.Join(dir, "rules.yaml"), shippedRules(t))
		cases, err := os.ReadFile("../../deploy/tests/alerts.yaml")
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), cases, 0o600))
		must(t, "", "promtool", "check", "rules", filepath.Join(dir, "rules.yaml"))
		must(t, "", "promtool", "test", "rules", filepath.Join(dir, "alerts.yaml"))
		for _, r := range shippedRules(t).Groups[0].Rules {
			if !strings.Contains(string(cases), "alertname: "+r.Alert+"\n") {
				t.Errorf("%s has no test", r.Alert)
			}
		}
	})
	w.apply(t, prometheusAccount)
	token := w.token(t, "operate", "prometheus")
	t.Run("metrics", func(t *testing.T) {
		eventually(t, 10*time.Second, "scraped", func() (bool, string) {
			code, body := w.get(t, w.front.Admin, "/metrics", token)
			return code == 200, body
		})
		_, scrape := w.get(t, w.front.Admin, "/metrics", token)
		a := command(t, scrape, "promtool", "check", "metrics")
		for line := range strings.Lines(a.out + a.errs) {
			if strings.HasPrefix(line, "fairlead") || strings.HasPrefix(line, "aggregator") {
				t.Errorf("promtool check metrics: %s", line)
			}
		}
		testDocumented(t, scrape)
	})
	t.Run("fire and clear", func(t *testing.T) { testFire(t, w, token) })
}

// testDocumented is the golden scrape: every series of ours has the type and the labels that docs/metrics.md says.
func testDocumented(t *testing.T, scrape string) {
	doc, err := os.ReadFile("../../docs/metrics.md")
	check(t, err)
	n := 0
	for line := range strings.Lines(scrape) {
		var name, kind string
		if _, err := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); err != nil || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		n++
		if !strings.Contains(string(doc), "| `"+name+"` | "+kind+" |") {
			t.Errorf("%s, a %s, is not in docs/metrics.md", name, kind)
		}
	}
	if n < 25 {
		t.Errorf("%d metrics in a scrape", n)
	}
}

func writeRules(t *testing.T, file string, r *rules) {
	t.Helper()
	data, err := yaml.Marshal(r)
	check(t, err)
	check(t, os.WriteFile(file, data, 0o600))
}

// testFire lets a real Prometheus scrape this Fairlead, breaks a backend and mends it. The alerts are the shipped ones with shorter times.
func testFire(t *testing.T, w *world, token string) {
	dir := t.TempDir()
	r := shippedRules(t)
	for i := range r.Groups[0].Rules {
		rule := &r.Groups[0].Rules[i]
		rule.For = "0s"
		rule.Expr = strings.NewReplacer("[10m]", "[5s]", "[5m]", "[5s]", "[1m]", "[5s]").Replace(rule.Expr)
	}
	writeRules(t, filepath.Join(dir, "rules.yaml"), r)
	check(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600))
	_, admin, _ := strings.Cut(w.front.Admin.URL, "//")
	check(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil, `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: fairlead
    scheme: https
    authorization: {credentials_file: token}
    tls_config: {ca_file: %s}
    static_configs: [{targets: [%q]}]
`, w.front.Admin.CAFile, admin), 0o600))
	address := freeAddress(t)
	_, err := w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: "prometheus",
		Args:  []string{"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address},
		Ready: func(ctx context.Context) error { _, err := firing(ctx, address); return err },
	})
	check(t, err)
	server := w.serve(t, "alarmed", nil)
	const alert = "FairleadAPIServiceDown v1.alarmed.example.com"
	await := func(alert string, want bool) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("%s firing %v", alert, want), func() (bool, string) {
			alerts, err := firing(t.Context(), address)
			return err == nil && alerts[alert] == want, fmt.Sprint(alerts, err)
		})
	}
	eventually(t, 30*time.Second, "available", func() (bool, string) {
		code, body := w.get(t, w.front.Endpoint, "/apis/alarmed.example.com/v1", "")
		return code == 200, body
	})
	await(alert, false)
	check(t, server.Set(extension.Fault{Kind: extension.Dead}))
	await(alert, true)
	await("KubeAggregatedAPIDown v1.alarmed.example.com", true)
	await("FairleadDown ", false)
	check(t, server.Set())
	await(alert, false)
	await("KubeAggregatedAPIDown v1.alarmed.example.com", false)
}

// firing are the alerts that fire, with the APIService that they are about.
func firing(ctx context.Context, address string) (map[string]bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	resp, err := new(http.Client).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, a := range body.Data.Alerts {
		if a.State == "firing" {
			out[a.Labels["alertname"]+" "+a.Labels["name"]] = true
		}
	}
	return out, nil
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	return l.Addr().String()
}
