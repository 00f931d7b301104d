//go:build e2e

package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/alone"
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
		testDocumented(t, scrape)
	})
	t.Run("fire and clear", func(t *testing.T) { testFire(t, w, token) })
}

// testDocumented checks that docs/metrics.md has each of Fairlead's metrics with its type.
func testDocumented(t *testing.T, scrape string) {
	doc := must.Get(os.ReadFile("../../docs/metrics.md"))(t)
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
		t.Errorf("%d metrics in a scrape, want at least 25", n)
	}
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
