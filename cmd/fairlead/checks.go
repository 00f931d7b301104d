package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/registry"
)

// checks say whether this process has what it needs.
type checks struct {
	needs       *needs.Needs
	live, ready *health.Checks
}

// makeChecks makes the checks of this process's own needs, /livez and /readyz, and the metrics of
// the process itself. A check is a gate only if nobody is served without it: what all replicas lack
// alike must not take all of them out of a load balancer (docs/decisions/0042).
func (s *server) makeChecks() error {
	all := []needs.Check{
		{Name: "table", Gate: tableReady(s.registry.Table)},
		{Name: "discovery", Gate: func(*http.Request) error { return s.discovery.Ready() }},
		{Name: "authentication-configmap", Gate: s.namesReady},
	}
	if s.kube != nil {
		own, err := authorizationv1.NewForConfig(s.kube.client)
		if err != nil {
			return fmt.Errorf("making client of the local apiserver: %w", err)
		}
		may := needs.NewRights(own, func() []rights.Right { return rights.Needed(s.features()) })
		s.loops["rights"] = may.Run
		all[len(all)-1].Look = func(time.Time) answer.Check { return may.Of(authConfigMap().Name) }
		all = append(all,
			needs.Check{Name: "local-apiserver", Gate: func(*http.Request) error { return s.kube.pools.Ready() }, Look: s.kube.lookServers},
			needs.Check{Name: "kubeconfig", Look: func(time.Time) answer.Check { return may.Credential() }},
			needs.Check{Name: "rights", Look: may.Look},
		)
	}
	s.live = &health.Checks{Name: "livez", Logger: s.log}
	s.ready = &health.Checks{Name: "readyz", Draining: &s.draining, Logger: s.log}
	s.needs = needs.New(needs.Config{
		Checks: all, Ready: func() bool { return s.ready.Err(nil) == nil }, Runbook: pages.Runbooks + "FairleadCheckFailing.md", Logger: s.log, Metrics: s.metrics,
	})
	s.ready.List, s.ready.Others = s.needs.Gates()
	s.loops["checks"] = s.needs.Run
	s.countProcess()
	return nil
}

// features are the parts of this process that need rights at the local apiserver.
func (s *server) features() rights.Features {
	from, mode := &s.o.registry, s.o.authorization()
	f := rights.Features{
		APIServices: from.cluster || from.dir == "" && from.etcd == nil, Services: from.cluster || from.dir == "", Tokens: true, ConfigMap: true,
		Requests: mode == authzWebhook || mode == authzBackend, Impersonation: s.o.impersonates(),
		Status: s.o.writeStatus, Events: s.o.emitEvents, Entrypoint: s.o.publishEndpoints, Servers: s.o.serversFrom,
	}
	f.Definitions = f.Services
	for _, e := range s.registry.Table().Entries() {
		if f.Services && e.Backend != nil && e.Backend.CAFrom != "" {
			f.Bundles = append(f.Bundles, e.Backend.Namespace)
		}
	}
	slices.Sort(f.Bundles)
	f.Bundles = slices.Compact(f.Bundles)
	return f
}

// lookServers returns which local apiservers cannot be used.
func (k *kube) lookServers(time.Time) answer.Check {
	servers := k.list()
	var bad int
	var cause error
	for _, e := range servers {
		if e.Health == registry.Unhealthy {
			bad++
			cause = errors.New(e.Address + ": " + e.Message)
		}
	}
	if bad == 0 {
		return answer.Check{}
	}
	return answer.Check{Status: needs.Failed, Message: fmt.Sprintf("%d of %d local apiservers are unhealthy and get no requests: %v", bad, len(servers), cause)}
}
