package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// described returns our own metrics as their collectors describe them, by name, with the names of their labels.
func described(t *testing.T, d *server) map[string]*dto.MetricFamily {
	t.Helper()
	kinds := map[string]*dto.MetricType{}
	for _, f := range must.Get(d.metrics.Gather())(t) {
		kinds[f.GetName()] = f.Type
	}
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)"(?:, unit: "[^"]*")?, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	all, descs := map[string]*dto.MetricFamily{}, make(chan *prometheus.Desc)
	go func() { defer close(descs); d.metrics.Describe(descs) }()
	for desc := range descs {
		m := form.FindStringSubmatch(desc.String())
		must.Be(t, m != nil, "unknown form of a description: %s", desc)
		f := &dto.MetricFamily{Name: &m[1], Help: new(strings.ReplaceAll(m[2], `\"`, `"`)), Type: cmp.Or(kinds[m[1]], kindOf(m[1]).Enum()), Metric: []*dto.Metric{{}}}
		for l := range strings.SplitSeq(m[4]+","+m[3], ",") {
			if name, _, _ := strings.Cut(l, "="); name != "" {
				f.Metric[0].Label = append(f.Metric[0].Label, &dto.LabelPair{Name: &name, Value: new("x")})
			}
		}
		slices.SortFunc(f.Metric[0].Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
		if !foreign(f.GetName()) {
			all[f.GetName()] = f
		}
	}
	return all
}

// foreign reports whether a metric is one of Go's or of the process.
func foreign(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
}

// kindOf names the type of metrics that have no series at first; the end-to-end tests compare it with a real scrape.
func kindOf(name string) dto.MetricType {
	switch {
	case strings.HasSuffix(name, "_total"):
		return dto.MetricType_COUNTER
	case strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_timestamp_seconds") && !strings.HasSuffix(name, "_age_seconds"):
		return dto.MetricType_HISTOGRAM
	}
	return dto.MetricType_GAUGE
}

// The list of docs/metrics.md is generated from the registered metrics; run this test with -update
// to write it. They pass promtool check metrics, also those without series.
func TestMetricsDocument(t *testing.T) {
	const file, first = "../../docs/metrics.md", "\n- `"
	dir := t.TempDir()
	policy := writeFile(t, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	d := doorBefore(t, "https://127.0.0.1:1", "--write-status", "--emit-events", "--publish-kubernetes-endpoints", "--advertise-address=192.0.2.1",
		"--access-log="+filepath.Join(dir, "access.log"), "--audit-log-path="+filepath.Join(dir, "audit.log"), "--audit-policy-file="+policy)
	all := described(t, d)
	check.Same(t, true, len(all) >= 30, "only %d metrics are described", len(all))
	have := string(must.Get(os.ReadFile(file))(t))
	before, _, _ := strings.Cut(have, first)
	var b strings.Builder
	b.WriteString(before + "\n")
	var families []*dto.MetricFamily
	ofTarget := strings.Fields("container endpoint instance job namespace node pod service") // of a ServiceMonitor
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f, labels := all[name], []string(nil)
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
			check.Same(t, false, slices.Contains(ofTarget, l.GetName()), "Prometheus renames %s of %s", l.GetName(), name)
		}
		form, kind := strings.TrimSuffix(name+"{"+strings.Join(labels, ",")+"}", "{}"), ""
		if f.GetType() != dto.MetricType_COUNTER { // whose names say so
			kind = " (" + strings.ToLower(f.GetType().String()) + ")"
		}
		fmt.Fprintf(&b, "- `%s`%s: %s\n", form, kind, f.GetHelp())
		switch f.GetType() { //nolint:exhaustive // there are no others
		case dto.MetricType_COUNTER:
			f.Metric[0].Counter = &dto.Counter{Value: new(0.0)}
		case dto.MetricType_HISTOGRAM:
			f.Metric[0].Histogram = &dto.Histogram{}
		default:
			f.Metric[0].Gauge = &dto.Gauge{Value: new(0.0)}
		}
		families = append(families, f)
	}
	if story.Updating() {
		must.Do(t, os.WriteFile(file, []byte(b.String()), 0o644))
	} else if have != b.String() {
		t.Errorf("docs/metrics.md differs from the registered metrics; go test ./cmd/fairlead -run TestMetricsDocument -update writes:\n%s", b.String())
	}
	for _, p := range must.Get(promlint.NewWithMetricFamilies(families).Lint())(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range must.Get(d.metrics.Gather())(t) {
		if name := f.GetName(); !foreign(name) && all[name] == nil {
			t.Errorf("%s is exposed and not described", name)
		}
	}
}

// One caller's scrapes leave a place for another's.
func TestScrapesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		pages := scrapes(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
		codes := make(chan int, maxScrapes+1)
		scrape := func(name string) {
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: name}), http.MethodGet, "/metrics", nil))
			codes <- w.Code
		}
		for _, name := range []string{"curious", "curious", "curious", "curious", "prometheus"} {
			go scrape(name)
			synctest.Wait()
		}
		check.Same(t, 1, len(codes), "refused scrapes")
		check.Same(t, http.StatusServiceUnavailable, <-codes, "the last place, for the same caller")
		close(end)
		for range maxScrapes {
			check.Same(t, http.StatusOK, <-codes, "status of a scrape")
		}
		scrape("curious")
		check.Same(t, http.StatusOK, <-codes, "status of a later scrape")
	})
}
