package registry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// unavailableReasons are the values of the label reason. Every series starts at 0, as those of metric.Counter.
var unavailableReasons = [...]string{ //nolint:gochecknoglobals // nothing writes it
	ReasonServiceNotFound, ReasonServiceAccessError, ReasonServicePortError, ReasonEndpointsNotFound,
	ReasonEndpointsAccessError, ReasonMissingEndpoints, ReasonFailedDiscoveryCheck, ReasonInvalidCABundle,
	ReasonMaintenance, ReasonProtectedGroup, ReasonInvalidURL,
}

// newMetrics exports a table, and returns the histogram of the time that building one takes.
func newMetrics(table func() *Table, to prometheus.Registerer) prometheus.Histogram {
	build := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "fairlead_registry_build_seconds", Help: "Time to build a table of APIServices.",
		// From 50 µs (a hundred entries) to 0.4 s (too late for ten thousand entries).
		Buckets: prometheus.ExponentialBuckets(50e-6, 2, 14),
	})
	metric.Register(to, build, gauges(table), outages(table), ruled(table))
	return build
}

// outages shows how often APIServices became unavailable. Local ones cannot, and would be most of the scrape.
func outages(table func() *Table) metric.Gauges {
	total := prometheus.NewDesc("aggregator_unavailable_apiservice_total",
		"Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
		[]string{"name", "reason"}, nil)
	counters := func(count func(*prometheus.Desc, float64, ...string)) {
		for _, e := range table().servers {
			for i, reason := range unavailableReasons {
				if !e.Local() && e.Hidden == "" {
					count(total, float64(e.outages[i]), e.Name, reason)
				}
			}
		}
	}
	return metric.Gauges{Type: prometheus.CounterValue, All: []*prometheus.Desc{total}, Make: counters}
}

func ruled(table func() *Table) metric.Gauges {
	requests := prometheus.NewDesc("fairlead_rule_requests_total",
		"Requests that matched a rule of the policy, by its name and action, and whether it refused them. "+
			"Those of a dry run are would_refuse if it would have.",
		[]string{"rule", "action", "result"}, nil)
	counters := func(count func(*prometheus.Desc, float64, ...string)) {
		for _, g := range table().Rules().All() {
			refused, passed := g.Count()
			result := map[bool]string{false: "refused", true: "would_refuse"}[g.DryRun]
			count(requests, float64(refused), g.Name, string(g.Action), result)
			count(requests, float64(passed), g.Name, string(g.Action), "passed")
		}
	}
	return metric.Gauges{Type: prometheus.CounterValue, All: []*prometheus.Desc{requests}, Make: counters}
}

func gauges(table func() *Table) metric.Gauges {
	unavailable := prometheus.NewDesc("aggregator_unavailable_apiservice",
		"Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)
	info := prometheus.NewDesc("fairlead_apiservice_info",
		"1 for each APIService of an extension server, with its group-version and its annotations "+
			"fairlead.dev/owner and maintenance.", []string{"name", "group", "version", "owner", "maintenance"}, nil)
	entries := prometheus.NewDesc("fairlead_registry_entries",
		"APIServices in the table by kind: local, remote, or refused because a remote claims a protected group.",
		[]string{"kind"}, nil)
	generation := prometheus.NewDesc("fairlead_registry_generation", "Number of the current table, from 1.", nil, nil)
	problems := prometheus.NewDesc("fairlead_registry_problems",
		"Faults of APIServices and of their source that are worked around and should be fixed.", nil, nil)
	files := prometheus.NewDesc("fairlead_registry_file_problems",
		"Faults of each invalid file of the directory, whose last valid objects are used, "+
			"and of each invalid APIService in etcd.", []string{"file"}, nil)
	gauges := func(gauge func(*prometheus.Desc, float64, ...string)) {
		t := table()
		counts := map[string]int{"local": 0, "remote": 0, "refused": 0}
		faults := 0
		for _, e := range t.servers {
			if e.Rule == nil {
				counts[e.Kind()]++
			}
			faults += len(e.Problems)
			if e.Hidden == "" { // 404 is what the policy asks for: no alert is to be about the server
				gauge(unavailable, metric.Number(!e.Verdict.Available()), e.Name)
			}
			if !e.Local() {
				of, s := e.GroupVersion, &e.Settings
				gauge(info, 1, e.Name, of.Group, of.Version, s.Owner, s.Maintenance)
			}
		}
		faulty := make(map[string]int)
		for _, p := range t.problems {
			if !p.Note {
				faults++
				faulty[strings.ToValidUTF8(p.File, "\ufffd")]++ // no label may have other bytes
			}
		}
		for file, n := range faulty {
			gauge(files, float64(n), file)
		}
		for kind, n := range counts {
			gauge(entries, float64(n), kind)
		}
		gauge(generation, float64(t.generation))
		gauge(problems, float64(faults))
	}
	return metric.Gauges{All: []*prometheus.Desc{unavailable, info, entries, generation, problems, files}, Make: gauges}
}
