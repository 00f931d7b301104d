package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const metricsDoc = "../../docs/metrics.md"

// family is a metric as described by its collector.
type family struct{ name, help, kind, labels string }

// described returns our own metrics, sorted by name.
func described(t *testing.T) ([]family, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	buildDoor(t, r, func(*options, *pki.CA) {})
	kinds := map[string]string{}
	gathered := must.Get(r.Gather())(t)
	for _, f := range gathered {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	re := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)"(?:, unit: "[^"]*")?, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	all := map[string]family{}
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); r.Describe(descs) }()
	for d := range descs {
		m := re.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("unknown form of a description: %s", d)
		}
		name := m[1]
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		labels := strings.Split(m[4], ",")
		for l := range strings.SplitSeq(m[3], ",") {
			key, _, _ := strings.Cut(l, "=")
			labels = append(labels, key)
		}
		labels = slices.DeleteFunc(labels, func(l string) bool { return l == "" })
		slices.Sort(labels)
		all[name] = family{name, strings.ReplaceAll(m[2], `\"`, `"`), cmp.Or(kinds[name], kindOf(name)), strings.Join(labels, ", ")}
	}
	list := slices.Collect(maps.Values(all))
	slices.SortFunc(list, func(a, b family) int { return strings.Compare(a.name, b.name) })
	return list, r
}

// kindOf names the type of metrics that have no series at first; the end-to-end tests compare it
// with a real scrape.
func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_timestamp_seconds") && !strings.HasSuffix(name, "_age_seconds"):
		return "histogram"
	}
	return "gauge"
}

// docs/metrics.md is generated from the registered metrics; run this test with -update to write it.
func TestMetricsDocument(t *testing.T) {
	list, _ := described(t)
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, f := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, f.labels, strings.ReplaceAll(f.help, "|", `\|`))
	}
	if *update {
		must.Do(t, os.WriteFile(metricsDoc, []byte(b.String()), 0o644))
	}
	have := must.Get(os.ReadFile(metricsDoc))(t)
	if string(have) != b.String() {
		t.Errorf("docs/metrics.md differs from the registered metrics; go test ./cmd/fairlead -run TestMetricsDocument -update writes:\n%s", b.String())
	}
	if len(list) < 30 {
		t.Errorf("only %d metrics are described", len(list))
	}
}

const metricsHead = `# Metrics

Written by ` + "`go test ./cmd/fairlead -run TestMetricsDocument -update`" + ` from the registered metrics; the test fails if this page is out of date.

They are on the admin port, at ` + "`/metrics`" + `, for users who may get that path. Labels come from the table of APIServices and from lists in the program, never
from a client: ` + "`name`" + ` is an APIService, ` + "`group`" + ` and ` + "`version`" + ` are those of an entry or ` + "`other`" + `. In ` + "`fairlead_backend_*`" + `, ` + "`name`" + ` may also be a pool of
connections to the local apiserver: ` + "`local-certificate`" + ` (or ` + "`local-impersonate`" + `), ` + "`local-proven`" + `, ` + "`local-unproven`" + ` and ` + "`local-health`" + `. The series of a deleted APIService
disappear. There are also the usual ` + "`go_*` and `process_*`" + `, and with ` + "`--registry=etcd:`" + ` kube-apiserver's ` + "`etcd_*`" + `. There is no label ` + "`namespace`" + `: it belongs to the
scraped target.

| metric | type | labels | meaning |
|---|---|---|---|
`

// Metrics pass promtool check metrics, also those without series.
func TestMetricsLint(t *testing.T) {
	list, r := described(t)
	var families []*dto.MetricFamily
	for _, f := range list {
		kind := dto.MetricType(dto.MetricType_value[strings.ToUpper(f.kind)])
		m := &dto.Metric{}
		switch kind { //nolint:exhaustive // there are no others
		case dto.MetricType_COUNTER:
			m.Counter = &dto.Counter{Value: new(0.0)}
		case dto.MetricType_HISTOGRAM:
			m.Histogram = &dto.Histogram{}
		default:
			m.Gauge = &dto.Gauge{Value: new(0.0)}
		}
		for l := range strings.SplitSeq(f.labels, ", ") {
			if l != "" {
				m.Label = append(m.Label, &dto.LabelPair{Name: new(l), Value: new("x")})
			}
		}
		families = append(families, &dto.MetricFamily{Name: new(f.name), Help: new(f.help), Type: &kind, Metric: []*dto.Metric{m}})
	}
	problems := must.Get(promlint.NewWithMetricFamilies(families).Lint())(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	// A real scrape contains only described metrics.
	gathered := must.Get(r.Gather())(t)
	for _, f := range gathered {
		if name := f.GetName(); !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") &&
			!slices.ContainsFunc(list, func(d family) bool { return d.name == name }) {
			t.Errorf("%s is exposed and not described", name)
		}
	}
}
