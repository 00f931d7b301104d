package pages

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/answer/rules"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	pace   = 10 * time.Second // between two points of an APIService's latency
	points = 60               // that are kept: ten minutes, as far as people look back when something is slow
	recent = 6                // of the last points are what the numbers cover: a minute
)

type traffic struct {
	mu      sync.Mutex // guards records
	records map[string]*record
}

// record belongs to one APIService. An APIService without any request yet has none.
type record struct {
	last   []uint64
	diffs  [][]uint64 // the counts of each of the last points, newest last
	failed uint64     // failures so far
	fails  []uint64   // those at each point of the last minute
}

func (tr *traffic) look(
	entries []*registry.Entry, latencies func(*registry.Entry) []uint64, failed func(*registry.Entry) uint64) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := make(map[string]*record, len(tr.records))
	for _, e := range entries {
		if e.Local() {
			continue
		}
		t, now, bad := tr.records[e.Name], latencies(e), failed(e)
		if t == nil && total(now) == 0 && bad == 0 {
			continue
		}
		t = cmp.Or(t, &record{})
		diff := slices.Clone(now)
		if len(t.last) == len(now) && total(t.last) <= total(now) { // a replaced backend starts from zero
			for i := range diff {
				diff[i] -= min(t.last[i], diff[i])
			}
		}
		t.last = now
		if total(diff) == 0 {
			diff = nil // saves memory: most backends are idle
		}
		t.diffs = append(t.diffs, diff)
		t.diffs = t.diffs[max(len(t.diffs)-points, 0):]
		if bad < t.failed { // a replaced entry starts from zero
			t.failed = 0
		}
		t.fails, t.failed = append(t.fails, bad-t.failed), bad
		t.fails = t.fails[max(len(t.fails)-recent, 0):]
		known[e.Name] = t
	}
	tr.records = known
}

// of returns the traffic of an APIService. Nil means that it had no requests.
func (tr *traffic) of(name string) *answer.Traffic {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	t := tr.records[name]
	if t == nil {
		return nil
	}
	out := &answer.Traffic{}
	minute := make([]uint64, len(t.last))
	for _, diff := range t.diffs[max(len(t.diffs)-recent, 0):] {
		for i, n := range diff {
			minute[i] += n
		}
	}
	const seconds = float64(recent * pace / time.Second) // a younger record had no request before
	out.Rate, out.Errors = round(float64(total(minute))/seconds), round(float64(total(t.fails))/seconds)
	out.P50, out.P99 = quantile(minute, .5), quantile(minute, .99)
	for _, diff := range t.diffs {
		out.Points = append(out.Points, quantile(diff, .99))
	}
	return out
}

func total(counts []uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// quantile returns a quantile of Pages.latencies in seconds. Within an element it assumes an even distribution.
func quantile(counts []uint64, share float64) float64 {
	all := total(counts)
	if all == 0 {
		return 0
	}
	rank, seen := share*float64(all), 0.0
	for i, c := range counts {
		if n := float64(c); seen+n >= rank && n > 0 {
			high := math.Ldexp(1, i)
			low := math.Floor(high / 2) // of the first: 0
			return round((low + (high-low)*(rank-seen)/n) / 1e6)
		}
		seen += float64(c)
	}
	return 0
}

// round rounds to three digits: the counts are no more precise.
func round(v float64) float64 {
	if v <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-2)
	return math.Round(v/unit) * unit
}

// LocalName is the name under which local apiservers are probed and trusted.
const LocalName = "local-apiserver"

func (p *Pages) status() *answer.Status {
	t := p.cfg.Registry.Table()
	s := p.cfg.Process()
	s.Time, s.Go, s.Started = time.Now(), runtime.Version(), p.started
	s.Generation, s.Complete = t.Generation(), t.Complete()
	s.APIServices, s.Transitions = make([]answer.APIService, 0, len(t.Servers())), p.history.newest()
	if err := p.cfg.Ready.Err(nil); err != nil {
		s.Ready = err.Error()
	}
	byName := make(map[string]*answer.APIService, len(t.Servers()))
	for i, e := range t.Servers() {
		s.APIServices = append(s.APIServices, p.apiService(e))
		byName[e.Name] = &s.APIServices[i]
	}
	p.details(s, byName)
	s.Rules = rules.Of(t.Rules().All()...)
	slices.SortStableFunc(s.Rules, func(a, b *rules.Rule) int { return cmp.Compare(b.Refused, a.Refused) })
	if n := len(s.Rules) - 100; n > 0 {
		s.Rules, s.Notes = s.Rules[:100], append(s.Notes, fmt.Sprintf("%d more rules of the policy are not listed", n))
	}
	for _, f := range t.Problems() {
		if f.Note {
			s.Notes = append(s.Notes, f.String())
		} else {
			s.Problems = append(s.Problems, f.String())
		}
	}
	return s
}

func (p *Pages) details(s *answer.Status, byName map[string]*answer.APIService) {
	s.LocalServers = p.localServers(p.cfg.LocalServers())
	for _, x := range p.cfg.Trust() {
		if a := byName[x.APIService]; a != nil {
			a.SetTrust(&x)
		} else if x.APIService == LocalName && len(s.LocalServers) > 0 {
			s.LocalTrust = &x
		}
	}
	other := &answer.APIService{} // one that is not asked for
	of := func(name string) *answer.APIService { return cmp.Or(byName[name], other) }
	for _, x := range p.cfg.Discovery() {
		a := of(x.Name)
		switch a.Discovery = &x; {
		case a.Cause != "" || !a.Available():
		case len(x.Conflicts) > 0:
			a.Cause = "resources are not listed as this server has them: " + strings.Join(x.Conflicts, "; ")
			a.Advice = "a server whose rule comes first in the policy has them otherwise: let one of the two have each"
		case x.Reason != "" && x.Reason != "pending":
			said := "the list of its resources may be outdated"
			if x.Stale {
				said = "its resources are listed as stale, so that no namespace can be deleted"
			}
			a.Cause, a.Runbook = said+": discovery: "+x.Reason+": "+x.Message, Runbooks+"FairleadDiscoveryStale.md"
			a.Advice = "see this server's log and, if it is the only one, what kubectl get --raw " + a.Path() + " says"
		}
	}
	for _, x := range p.cfg.OpenAPI() {
		of(x.Name).OpenAPI = &x
	}
	for _, x := range s.Transitions {
		if x.Status == "False" && s.Time.Sub(x.Time) < time.Hour {
			of(x.APIService).Flaps++
		}
	}
}

func (p *Pages) localServers(servers []registry.Endpoint) []answer.Endpoint {
	list := []answer.Endpoint{} // [] rather than null, as all lists without omitempty
	for _, server := range servers {
		list = append(list, p.endpoint(LocalName, server))
	}
	return list
}

func (p *Pages) apiService(e *registry.Entry) answer.APIService {
	a := answer.APIService{
		Name: e.Name, Group: e.GroupVersion.Group, Version: e.GroupVersion.Version, Kind: e.Kind(),
		Problems: e.Problems, Maintenance: e.Settings.Maintenance,
		GroupPriority: e.Object.Spec.GroupPriorityMinimum, VersionPriority: e.Object.Spec.VersionPriority,
		Verdict: e.Verdict, Rule: e.Hidden,
	}
	a.Verdict.Status = e.Verdict.Shown()
	if e.StandIn != nil {
		a.StandIn = e.StandIn.Name
	}
	if e.Rule != nil {
		a.BackendOf, a.Rule, a.Standby = e.APIService(), e.Rule.Where, e.Rule.When == nil
	}
	if e.Local() {
		return a
	}
	a.Owner = e.Settings.Owner
	a.Service, a.Front, a.FrontSays, a.ServerName = e.Backend.String(), e.Front, e.FrontSays, e.Backend.ServerName
	a.MaxInFlight, a.MaxLongRunning = e.Settings.MaxInFlight, e.Settings.MaxLongRunning
	a.Traffic = p.traffic.of(e.Name)
	var each map[string]int64
	var said map[string]string
	if u := p.cfg.Backends.Upstream(e); u != nil {
		a.InFlight, a.LongRunning, each, said = u.Load()
		a.Limits = u.Limits()
	}
	changes := p.history.of(e.Name)
	for _, at := range e.Endpoints {
		ep := p.endpoint(e.Name, at)
		ep.Changes, ep.InFlight, ep.GoAway = changes[ep.Address], each[ep.Address], said[ep.Address]
		a.Endpoints = append(a.Endpoints, ep)
	}
	help(&a, e)
	return a
}

func (p *Pages) endpoint(of string, e registry.Endpoint) answer.Endpoint {
	found := answer.Endpoint{
		Address: e.Address, Health: healthName(e.Health), Since: e.Since, Slow: e.Slow,
		Terminating: e.Terminating, Far: e.Far, Reason: e.Reason, Error: e.Message,
	}
	p.cfg.Endpoint(of, &found)
	found.ProbeSeconds = round(found.ProbeSeconds)
	return found
}

func healthName(h registry.Health) string {
	return [...]string{registry.Unprobed: "unprobed", registry.Healthy: "healthy", registry.Unhealthy: "unhealthy"}[h]
}
