package pages

import (
	"cmp"
	"runtime"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
)

// LocalName is the name under which local apiservers are probed and trusted.
const LocalName = "local-apiserver"

// status makes the status document.
func (p *Pages) status() *answer.Status {
	t := p.cfg.Table()
	s := &answer.Status{
		Time: time.Now(), Version: p.cfg.Version, Replica: p.cfg.Replica, Cluster: p.cfg.Cluster, Go: runtime.Version(), Started: p.started, Generation: t.Generation(), Complete: t.Complete(),
		APIServices: make([]answer.APIService, 0, len(t.Entries())), Transitions: p.history.newest(),
		LocalServers: []answer.Endpoint{}, // [] rather than null, as all lists without omitempty
	}
	if err := p.cfg.Ready(); err != nil {
		s.Ready = err.Error()
	}
	trusts := make(map[string]*trust.Status)
	all := p.cfg.Trust()
	for i := range all {
		trusts[all[i].APIService] = &all[i]
	}
	for _, e := range t.Entries() {
		a := p.apiService(e)
		a.Trust = trusts[e.Name]
		s.APIServices = append(s.APIServices, a)
	}
	p.documents(s.APIServices)
	flaps := make(map[string]int)
	for _, t := range s.Transitions {
		if t.Status == "False" && s.Time.Sub(t.Time) < time.Hour {
			flaps[t.APIService]++
		}
	}
	for i := range s.APIServices {
		s.APIServices[i].Flaps = flaps[s.APIServices[i].Name]
	}
	if servers := p.cfg.LocalServers(); len(servers) > 0 {
		s.LocalTrust, s.LocalIdentity = trusts[LocalName], p.cfg.LocalIdentity
		for i := range servers {
			s.LocalServers = append(s.LocalServers, p.endpoint(LocalName, &servers[i]))
		}
	}
	s.Certificates = append([]certs.Status{}, p.cfg.Certificates()...)
	for _, f := range t.Problems() {
		s.Problems = append(s.Problems, f.String())
	}
	return s
}

// documents adds the state of each APIService's part of the merged documents.
func (p *Pages) documents(to []answer.APIService) {
	found, described := p.cfg.Discovery(), p.cfg.OpenAPI()
	byName := make(map[string]*answer.APIService, len(to))
	for i := range to {
		byName[to[i].Name] = &to[i]
	}
	for i := range found {
		if a := byName[found[i].Name]; a != nil {
			a.Discovery = &found[i]
		}
	}
	for i := range described {
		if a := byName[described[i].Name]; a != nil {
			a.OpenAPI = &described[i]
		}
	}
}

func (p *Pages) apiService(e *registry.Entry) answer.APIService {
	a := answer.APIService{
		Name: e.Name, Group: e.GroupVersion.Group, Version: e.GroupVersion.Version, Kind: e.Kind(), Problems: e.Problems, Maintenance: e.Policy.Maintenance,
		GroupPriority: e.Object.Spec.GroupPriorityMinimum, VersionPriority: e.Object.Spec.VersionPriority, Verdict: verdict(&e.Verdict),
	}
	if e.Local() {
		return a
	}
	a.Owner = e.Policy.Owner
	a.Service, a.ServerName = e.Backend.String(), e.Backend.ServerName
	a.MaxInFlight, a.MaxLongRunning = e.Policy.MaxInFlight, e.Policy.MaxLongRunning
	a.Traffic = p.traffic.of(e.Name)
	inFlight, longRunning, each, said := p.cfg.Load(e)
	a.InFlight, a.LongRunning = inFlight, longRunning
	changes := p.history.of(e.Name)
	for i := range e.Endpoints {
		ep := p.endpoint(e.Name, &e.Endpoints[i])
		ep.Changes = changes[ep.Address]
		ep.InFlight, ep.GoAway = each[ep.Address], said[ep.Address]
		a.Endpoints = append(a.Endpoints, ep)
	}
	help(&a, e)
	return a
}

func verdict(v *registry.Verdict) answer.Verdict {
	return answer.Verdict{Status: cmp.Or(string(v.Status), "Unknown"), Reason: v.Reason, Message: v.Message, Since: v.Since}
}

func (p *Pages) endpoint(of string, e *registry.Endpoint) answer.Endpoint {
	ended, took, fault := p.cfg.Probed(of, e.Address)
	return answer.Endpoint{
		Address: e.Address, Health: healthName(e.Health), Since: e.Since, Slow: e.Slow, Terminating: e.Terminating, Reason: e.Reason, Error: e.Message,
		Probed: ended, ProbeSeconds: round(took.Seconds()), ProbeError: fault,
	}
}

func healthName(h registry.Health) string {
	switch h {
	case registry.Healthy:
		return "healthy"
	case registry.Unhealthy:
		return "unhealthy"
	}
	return "unprobed"
}
