//go:build e2e

package operate

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// dashboard has the fields of Grafana's schema 39 that our dashboards use. Any other field is a
// mistake.
type dashboard struct {
	Title, UID, Refresh    string
	SchemaVersion, Version int
	Editable               bool
	Time                   struct{ From, To string }
	Tags                   []string
	Links                  []map[string]any
	Templating             struct{ List []variable }
	Panels                 []dashboardPanel
}

type variable struct {
	Name, Label, Type, AllValue string
	Datasource, Query, Current  any
	Refresh, Sort               int
	IncludeAll, Multi           bool
}

type dashboardPanel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Panels                   []any
	GridPos                  struct{ H, W, X, Y int }
	Datasource               *source
	FieldConfig              struct {
		Defaults struct {
			Unit       string
			Min        *float64
			Thresholds any
		}
		Overrides []any
	}
	Options, Transformations any
	Targets                  []struct {
		RefID, Expr, LegendFormat, Format string
		Instant                           bool
		Datasource                        source
	}
}

type source struct{ Type, UID string }

// testDashboards requires what Grafana requires of dashboards, existing metrics, and expressions
// that Prometheus parses.
func testDashboards(t *testing.T) {
	files := must.Get(filepath.Glob("../../deploy/components/monitoring/*.json"))(t)
	kustomization := must.Get(os.ReadFile("../../deploy/components/monitoring/kustomization.yaml"))(t)
	uids := map[string]bool{}
	var queries []string
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		var d dashboard
		strict := json.NewDecoder(bytes.NewReader(data))
		strict.DisallowUnknownFields()
		must.Do(t, strict.Decode(&d))
		name := filepath.Base(file)
		if d.Title == "" || uids[d.UID] || d.UID != strings.TrimSuffix(name, ".json") || len(d.UID) > 40 || d.SchemaVersion != 39 || !slices.Contains(d.Tags, "fairlead") {
			t.Errorf("%s: title %q, uid %q, schema %d, tags %q", name, d.Title, d.UID, d.SchemaVersion, d.Tags)
		}
		uids[d.UID] = true
		if !strings.Contains(string(kustomization), name) {
			t.Errorf("%s is not in kustomization.yaml", name)
		}
		queries = append(queries, testPanels(t, name, &d)...)
	}
	if len(files) != 3 || len(queries) < 60 {
		t.Errorf("%d dashboards with %d queries", len(files), len(queries))
	}
	for _, q := range queries {
		testMetricNames(t, "a dashboard", q)
	}
	for _, g := range shippedRules(t).Groups {
		for _, r := range g.Rules {
			testMetricNames(t, r.Alert+r.Record, r.Expr)
			if r.Alert == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join("../../docs/runbooks", r.Alert+".md")); err != nil {
				t.Errorf("%s has no runbook: %v", r.Alert, err)
			}
		}
	}
	testQueries(t, queries)
}

// testPanels returns the queries of a dashboard, with values in place of its variables.
func testPanels(t *testing.T, name string, d *dashboard) (queries []string) {
	values := []string{"${datasource}", "prometheus", "$__rate_interval", "5m"}
	for _, v := range d.Templating.List {
		values = append(values, "$"+v.Name, "x")
	}
	fill := strings.NewReplacer(values...)
	kinds := []string{"row", "stat", "table", "timeseries", "state-timeline"}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || !slices.Contains(kinds, p.Type) {
			t.Errorf("%s: panel %d %q is a %s", name, p.ID, p.Title, p.Type)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s: %q is at %+v", name, p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("%s: %q overlaps %q", name, p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) || p.Type != "row" && (p.Datasource == nil || p.FieldConfig.Defaults.Unit == "") {
			t.Errorf("%s: %q has %d queries", name, p.Title, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.Datasource.UID != "${datasource}" {
				t.Errorf("%s: %q: query %q of %q", name, p.Title, q.RefID, q.Datasource.UID)
			}
			refs[q.RefID] = true
			// A range query would give the table a row for each moment.
			if now := p.Type == "table" || p.Type == "stat"; q.Instant != now || (q.Format == "table") != (p.Type == "table") {
				t.Errorf("%s: %q: instant %v, format %q", name, p.Title, q.Instant, q.Format)
			}
			expr := fill.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: %q: unknown variable: %s", name, p.Title, expr)
			}
			queries = append(queries, expr)
		}
	}
	return queries
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
