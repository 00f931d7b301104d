//go:build e2e

package operate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// testDashboards requires that dashboards and rules use existing metrics, and expressions that
// Prometheus parses. `make dashboards` checks them by Grafana's own types.
func testDashboards(t *testing.T) {
	kustomization := must.Get(os.ReadFile("../../deploy/components/monitoring/kustomization.yaml"))(t)
	files := must.Get(filepath.Glob("../../deploy/components/monitoring/*.json"))(t)
	var queries []string
	for _, file := range files {
		name := filepath.Base(file)
		if !strings.Contains(string(kustomization), name) {
			t.Errorf("%s is not in kustomization.yaml", name)
		}
		var d struct {
			UID        string
			Templating struct{ List []struct{ Name string } }
			Panels     []struct{ Targets []struct{ Expr string } }
		}
		must.Do(t, json.Unmarshal(must.Get(os.ReadFile(file))(t), &d))
		if d.UID != strings.TrimSuffix(name, ".json") {
			t.Errorf("%s: uid %q", name, d.UID)
		}
		values := []string{"$__rate_interval", "5m"}
		for _, v := range d.Templating.List {
			values = append(values, "$"+v.Name, "x")
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				expr := strings.NewReplacer(values...).Replace(q.Expr)
				if strings.Contains(expr, "$") {
					t.Errorf("%s: unknown variable: %s", name, expr)
				}
				testMetricNames(t, name, expr)
				queries = append(queries, expr)
			}
		}
	}
	if len(files) != 3 || len(queries) < 60 {
		t.Errorf("%d dashboards with %d queries", len(files), len(queries))
	}
	for _, g := range shippedRules(t).Groups {
		for _, r := range g.Rules {
			testMetricNames(t, r.Alert+r.Record, r.Expr)
			if _, err := os.Stat(filepath.Join("../../docs/runbooks", r.Alert+".md")); r.Alert != "" && err != nil {
				t.Errorf("%s has no runbook: %v", r.Alert, err)
			}
		}
	}
	testQueries(t, queries)
}

// testMetricNames requires that each metric of an expression exists or is recorded by a rule.
func testMetricNames(t *testing.T, where, expr string) {
	doc := must.Get(os.ReadFile("../../docs/metrics.md"))(t)
	recorded := map[string]bool{}
	for _, g := range shippedRules(t).Groups {
		for _, r := range g.Rules {
			recorded[r.Record] = true
		}
	}
	n := 0
	for _, m := range regexp.MustCompile(`\b(fairlead|aggregator)[_:][a-z0-9_:]+|\b(up|process_[a-z_]+|go_[a-z_]+)\b`).FindAllString(expr, -1) {
		n++
		base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(m, "")
		if (strings.HasPrefix(m, "fairlead") || strings.HasPrefix(m, "aggregator")) && !recorded[m] && !strings.Contains(string(doc), "`"+base+"`") && !strings.Contains(string(doc), "`"+m+"`") {
			t.Errorf("%s uses %s, which is not in docs/metrics.md", where, m)
		}
	}
	if n == 0 {
		t.Errorf("%s uses no metric: %s", where, expr)
	}
}

// rules are the shipped alerts and recording rules.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// alerts returns the alerts' names, each once: some have a rule for each severity.
func (r *rules) alerts() []string {
	var names []string
	for _, g := range r.Groups {
		for _, one := range g.Rules {
			if one.Alert != "" && !slices.Contains(names, one.Alert) {
				names = append(names, one.Alert)
			}
		}
	}
	return names
}
