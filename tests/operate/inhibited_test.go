//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

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
