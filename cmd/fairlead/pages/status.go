package pages

import (
	"runtime"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
)

// status makes the document.
func (p *Pages) status() *answer.Status {
	t := p.cfg.Table()
	s := &answer.Status{
		Time: time.Now(), Version: p.cfg.Version, Go: runtime.Version(), Started: p.started, Generation: t.Generation(), Complete: t.Complete(),
		APIServices: make([]answer.APIService, 0, len(t.Entries())), Transitions: p.history.newest(),
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
	if servers := p.cfg.LocalServers(); len(servers) > 0 {
		s.LocalTrust = trusts["local-apiserver"]
		for i := range servers {
			s.LocalServers = append(s.LocalServers, endpoint(&servers[i]))
		}
	}
	s.Certificates = p.cfg.Certificates()
	for _, f := range t.Problems() {
		s.Problems = append(s.Problems, f.String())
	}
	return s
}

// documents adds what is known of each one's part of the merged documents.
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
	a.Service, a.ServerName = e.Backend.String(), e.Backend.ServerName
	a.MaxInFlight, a.MaxLongRunning = e.Policy.MaxInFlight, e.Policy.MaxLongRunning
	a.Traffic = p.traffic.of(e.Name)
	var each map[string]int64
	a.InFlight, a.LongRunning, each = p.cfg.Load(e)
	for i := range e.Endpoints {
		ep := endpoint(&e.Endpoints[i])
		ep.InFlight = each[ep.Address]
		a.Endpoints = append(a.Endpoints, ep)
	}
	return a
}

func verdict(v *registry.Verdict) answer.Verdict {
	out := answer.Verdict{Status: string(v.Status), Reason: v.Reason, Message: v.Message, Since: v.Since}
	if out.Status == "" {
		out.Status = "Unknown"
	}
	return out
}

func endpoint(e *registry.Endpoint) answer.Endpoint {
	return answer.Endpoint{
		Address: e.Address, Health: healthName(e.Health), Since: e.Since, Slow: e.Slow, Terminating: e.Terminating, Reason: e.Reason, Error: e.Message,
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
