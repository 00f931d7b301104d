package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/directory"
)

type checks struct {
	objects     apiregistrationv1.APIServiceInterface // whose status is written. Nil means none
	needs       *needs.Needs
	live, ready *health.Checks

	tokens, requests needs.Outcome // of reviews
	pairs            pairs
	unfit            func() error          // why no user can be asserted
	distrusted       func(time.Time) error // why the cluster believes no assertion
}

// makeChecks makes the checks of this process's own needs, /livez and /readyz, and the metrics of
// the process itself. A check is a gate only if nobody is served without it: what all replicas lack
// alike must not take all of them out of a load balancer (docs/decisions/0042). The check of critical
// APIServices may be a gate although others are served, because it never takes all replicas out (0049).
func (s *server) makeChecks(jwts *tokens.Tokens) {
	all := []needs.Check{
		{Name: "table", Gate: tableReady(s.registry.Table)},
		{Name: "discovery", Gate: func(*http.Request) error { return s.discovery.Ready() }},
		{Name: "authentication-configmap", Gate: s.namesReady},
	}
	if s.kube != nil {
		may := needs.NewRights(s.kube.api.AuthorizationV1(),
			func() []rights.Right { return rights.Needed(s.features()) })
		s.loops["rights"] = may.Run
		all[len(all)-1].Look = func(time.Time) answer.Check { return s.lookConfigMap(may.Of(authConfigMap().Name)) }
		reached := func(*http.Request) error { return s.kube.pools.Ready() }
		all = append(all, []needs.Check{
			{Name: "local-apiserver", Gate: reached, Look: func(time.Time) answer.Check {
				unread, _ := s.registry.Unread()
				unread = cmp.Or(unread, s.kube.found.Err(time.Time{}), s.discovery.Unread(), s.openapi.Unread())
				return lookServers(s.kube.list(), unread)
			}},
			{Name: "kubeconfig", Look: func(time.Time) answer.Check { return s.lookKubeconfig(may.Credential()) }},
			{Name: "rights", Look: func(time.Time) answer.Check { return may.Of("") }},
			{Name: "reviews", Look: func(time.Time) answer.Check { return s.lookReviews(may.Passed()) }},
			{Name: "clock", Look: s.kube.clock.Look},
		}...)
	}
	if s.o.registry.etcd != nil {
		all = append(all, s.askEtcd())
	}
	if s.o.authConfig != "" {
		look := func(time.Time) answer.Check { return lookIssuers(jwts.Faults()) }
		all = append(all, needs.Check{Name: "issuers", Look: look})
	}
	all = append(all, []needs.Check{
		{
			Name: "certificates", Gate: func(*http.Request) error { return ptr.Deref(s.pairs.serving.Load(), nil) },
			Look: seldomLook(func(now time.Time) answer.Check { return s.pairs.judge(s.certs.Status(), now) }),
		},
		{Name: "registry", Look: func(time.Time) answer.Check { return problem(s.registry.Table().Problems()) }},
		{Name: "registry-cache", Look: func(time.Time) answer.Check { // FairleadRegistryProblems does not tell it
			return failed(s.registry.Unstored(), "", "what a start without etcd would use cannot be stored: ",
				"check the disk of --registry-cache-file")
		}},
		{Name: "descriptors", Look: seldomLook(s.lookDescriptors)},
		{Name: "memory", Look: s.lookMemory},
	}...)
	all = append(all, s.more...)
	if len(s.o.critical) > 0 {
		all = s.addCritical(all)
	}
	s.live = &health.Checks{Name: "livez"}
	s.ready = &health.Checks{Name: "readyz", Draining: &s.draining}
	s.needs = needs.New(needs.Config{
		Checks: all, Ready: func() bool { return s.ready.Err(nil) == nil }, Sinks: s.sinks,
		Runbook: pages.Runbooks + "FairleadCheckFailing.md",
	})
	s.ready.List, s.ready.Others = s.needs.Gates()
	s.loops["checks"] = s.needs.Run
	s.countProcess()
}

func (s *server) features() rights.Features {
	from, mode := &s.o.registry, s.o.authorization()
	f := rights.Features{
		APIServices: from.cluster || from.dir == "" && from.etcd == nil, Services: from.cluster || from.dir == "",
		Requests:      mode == authzWebhook || mode == authzBackend,
		Impersonation: s.o.impersonates() && (s.o.Behind == "" || s.o.Certs.ClientCA != ""), // only in front
		Status:        s.o.writeStatus, Events: s.o.emitEvents, Entrypoint: s.o.publishEndpoints,
		Critical: len(s.o.critical) > 0, Servers: s.o.serversFrom,
	}
	f.Policy, _ = cli.PolicyMap(s.o.Policy)
	f.NamespaceLabels = s.registry.Table().NamespaceLabels()
	if f.Services {
		f.Bundles = bundles(s.registry.Table().Servers(), from.dir, s.trust.Faults())
	}
	return f
}

// bundles returns the objects of ca-from that the cluster must show us: those that no directory has.
func bundles(entries []*registry.Entry, dir string, faults map[string]string) []string {
	has := func(e *registry.Entry) bool { return dir != "" && faults[e.Name] == "" }
	return rights.BundlesOf(slices.DeleteFunc(slices.Clone(entries), has))
}

// problem returns the first fault of where APIServices come from that is no note.
func problem(all []directory.Fault) answer.Check {
	if at := slices.IndexFunc(all, func(f directory.Fault) bool { return !f.Note }); at >= 0 {
		return failed(errors.New(all[at].String()), "", "",
			"correct it: until then the last good state is used, if there is one")
	}
	return answer.Check{}
}

func (s *server) askEtcd() needs.Check {
	reads := &needs.Outcome{}
	const pause, limit = 10 * time.Second, 5 * time.Second // a member that restarts is missed by one read at most
	s.loops["etcd"] = every(pause, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		_, err := s.objects.List(ctx, metav1.ListOptions{Limit: 1})
		reads.Note(cmp.Or(errors.Unwrap(err), err)) // without the URL, which is none of etcd's
	})
	return needs.Check{Name: "etcd", Look: func(time.Time) answer.Check {
		_, unread := s.registry.Unread() // all of them, while the first can be read
		return failed(cmp.Or(reads.Err(time.Time{}), unread), "",
			"APIServices cannot be read from "+strings.Join(s.o.registry.etcd, ",")+", the last state is used: ",
			"check etcd, and that this machine reaches it with --etcd-cafile and --etcd-certfile")
	}}
}
