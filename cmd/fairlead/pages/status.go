package pages

import (
	"cmp"
	"runtime"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
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
	byName := make(map[string]*answer.APIService, len(t.Entries()))
	for i, e := range t.Entries() {
		s.APIServices = append(s.APIServices, p.apiService(e))
		byName[e.Name] = &s.APIServices[i]
	}
	p.details(s, byName)
	s.Certificates = append([]certs.Status{}, p.cfg.Certificates()...)
	for _, f := range t.Problems() {
		s.Problems = append(s.Problems, f.String())
	}
	return s
}

// details adds what is known about APIServices by their names, and the local apiservers.
func (p *Pages) details(s *answer.Status, byName map[string]*answer.APIService) {
	servers := p.cfg.LocalServers()
	for i := range servers {
		s.LocalIdentity = p.cfg.LocalIdentity
		s.LocalServers = append(s.LocalServers, p.endpoint(LocalName, &servers[i]))
	}
	for _, x := range p.cfg.Trust() {
		if a := byName[x.APIService]; a != nil {
			a.Trust = &x
		} else if x.APIService == LocalName && len(servers) > 0 {
			s.LocalTrust = &x
		}
	}
	for _, x := range p.cfg.Discovery() {
		if a := byName[x.Name]; a != nil {
			a.Discovery = &x
		}
	}
	for _, x := range p.cfg.OpenAPI() {
		if a := byName[x.Name]; a != nil {
			a.OpenAPI = &x
		}
	}
	for _, x := range s.Transitions {
		if a := byName[x.APIService]; a != nil && x.Status == "False" && s.Time.Sub(x.Time) < time.Hour {
			a.Flaps++
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
	return cmp.Or(map[registry.Health]string{registry.Healthy: "healthy", registry.Unhealthy: "unhealthy"}[h], "unprobed")
}
