//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

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
		cases := must.Get(os.ReadFile("../../deploy/tests/alerts.yaml"))(t)
		must.Do(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), cases, 0o600))
		succeed(t, "", "promtool", "check", "rules", filepath.Join(dir, "rules.yaml"))
		succeed(t, "", "promtool", "test", "rules", filepath.Join(dir, "alerts.yaml"))
		for _, name := range shippedRules(t).alerts() {
			if !strings.Contains(string(cases), "alertname: "+name+"\n") {
				t.Errorf("%s has no test", name)
			}
		}
	})
	t.Run("inhibited", func(t *testing.T) { testInhibited(t, w) })
	w.apply(t, prometheusAccount)
	token := suite.Token(t, w.core, "operate", "prometheus")
	t.Run("metrics", func(t *testing.T) {
		w.serves(t, 10*time.Second, w.front.Admin, "/metrics", token)
		_, scrape := w.get(t, w.front.Admin, "/metrics", token)
		a := command(t, scrape, "promtool", "check", "metrics")
		for line := range strings.Lines(a.Out + a.Errs) {
			if strings.HasPrefix(line, "fairlead") || strings.HasPrefix(line, "aggregator") {
				t.Errorf("promtool check metrics: %s", line)
			}
		}
	})
	t.Run("fire and clear", func(t *testing.T) { testFire(t, w, token) })
}

func writeRules(t *testing.T, file string, r *rules) {
	t.Helper()
	data := must.Get(yaml.Marshal(r))(t)
	must.Do(t, os.WriteFile(file, data, 0o600))
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", alone.Ports(t, 1)[0])
}

// testInhibited configures a real Alertmanager as in the example, and sends it the alerts of a dead
// backend with traffic, and of a cluster without Fairlead. It must report one alert per cause.
func testInhibited(t *testing.T, w *world) {
	config := must.Get(filepath.Abs("../../deploy/components/monitoring/alertmanager.yaml"))(t)
	succeed(t, "", "amtool", "check-config", config)
	address := freeAddress(t)
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "alertmanager", Path: "prometheus-alertmanager",
		Args:  []string{"--config.file=" + config, "--storage.path=" + t.TempDir(), "--web.listen-address=" + address, "--cluster.listen-address="},
		Ready: func(ctx context.Context) error { _, err := active(ctx, address); return err },
	}))(t)
	const x, y = "v1.x.example.com", "v1.y.example.com"
	alert := func(cluster, alert, severity, name string) map[string]any {
		return map[string]any{"labels": map[string]string{"cluster": cluster, "alertname": alert, "severity": severity, "name": name}}
	}
	body := must.Get(json.Marshal([]map[string]any{
		alert("a", "FairleadBackendErrors", "critical", x), alert("a", "FairleadBackendErrors", "warning", x), alert("a", "FairleadAPIServiceDown", "warning", x),
		alert("a", "KubeAggregatedAPIDown", "warning", x), alert("a", "FairleadDiscoveryStale", "warning", x), alert("a", "FairleadEndpointDown", "warning", x),
		alert("a", "FairleadAPIServiceDown", "warning", y), alert("a", "KubeAggregatedAPIErrors", "warning", y),
		alert("b", "FairleadDown", "critical", ""), alert("b", "FairleadBackendErrors", "critical", x), alert("b", "KubeAggregatedAPIDown", "warning", y),
	}))(t)
	must.Get(ask.Do(t.Context(), new(http.Client), http.MethodPost, "http://"+address+"/api/v2/alerts", nil, string(body)))(t)
	want := []string{"a FairleadAPIServiceDown warning " + y, "a FairleadBackendErrors critical " + x, "b FairleadDown critical "}
	suite.Eventually(t, 30*time.Second, "one alert for one cause", func() (bool, string) {
		got, err := active(t.Context(), address)
		return err == nil && slices.Equal(got, want), fmt.Sprint(got, err)
	})
}

// active returns the alerts that are not inhibited.
func active(ctx context.Context, address string) ([]string, error) {
	var list []struct{ Labels map[string]string }
	if err := ask.JSON(ctx, "http://"+address+"/api/v2/alerts?inhibited=false", &list); err != nil {
		return nil, err
	}
	var names []string
	for _, a := range list {
		names = append(names, fmt.Sprint(a.Labels["cluster"], " ", a.Labels["alertname"], " ", a.Labels["severity"], " ", a.Labels["name"]))
	}
	slices.Sort(names)
	return names, nil
}
