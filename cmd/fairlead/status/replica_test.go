package status

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationfake "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1/fake"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// replica writes conditions or Events. Its table and faults change with the story.
type replica struct {
	mu         sync.Mutex // guards the fields below
	entries    []*registry.Entry
	superseded chan struct{}
	faults     map[string]string
	rules      *policy.Gates

	log    logbook.Book
	writer *Writer // nil: it writes Events
	stop   func()
}

// state is a snapshot of a replica's table.
type state struct {
	entries    []*registry.Entry
	superseded <-chan struct{}
}

func (s state) Servers() []*registry.Entry  { return s.entries }
func (s state) Superseded() <-chan struct{} { return s.superseded }

func (r *replica) table() latest.State[*registry.Entry] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return state{r.entries, r.superseded}
}

func (r *replica) set(entries []*registry.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = entries
	if r.superseded != nil {
		close(r.superseded)
	}
	r.superseded = make(chan struct{})
}

// stage is an apiserver with replicas.
type stage struct {
	*testing.T
	*apiserver
	replicas      map[string]*replica
	seen, noticed int // patches and Events
}

func (s *stage) config(r *replica) Config {
	return Config{
		Table: r.table, APIServices: (&apiregistrationfake.FakeApiregistrationV1{Fake: &s.client.Fake}).APIServices(),
		Client: &s.client, Identity: "one",
	}
}

// start runs a replica: a writer that is elected with a Lease or by etcd, or one of Events.
func (s *stage) start(name, kind string, entries []*registry.Entry) {
	r := s.replicas[name]
	r.set(entries)
	c := s.config(r)
	c.Identity, c.Logger = name, slog.New(slog.NewTextHandler(&r.log, nil))
	if kind == "etcd" {
		c.Client, c.Identity = nil, ""
		c.Elect = func(ctx context.Context, name string, lead func(context.Context)) error {
			check.Same(s.T, lease, name, "elected for")
			lead(ctx)
			return ctx.Err()
		}
	}
	if kind == "events" {
		faults := func() map[string]string {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.faults
		}
		rules := func() *policy.Gates {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.rules
		}
		e := NewEvents(Config{Table: c.Table, Client: c.Client, Identity: name, Faults: faults})
		events := must.Run(s, e.Run)
		look := must.Run(s, func(ctx context.Context) error {
			for latest.Sleep(ctx, 5*time.Second) {
				e.Refusals(rules(), c.Logger)
			}
			return ctx.Err()
		})
		r.stop = func() { events(); look() }
	} else {
		r.writer = New(c)
		r.stop = must.Run(s, r.writer.Run)
	}
}

// apply sets the rules of the policy, each name[=dry-run]: a ConfigMap's, or a file's if in is "-".
func (r *replica) apply(t *testing.T, in string, words []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	g := policy.NewGates(r.rules)
	for i, w := range words {
		name, dry, _ := strings.Cut(w, "=")
		rule := policy.AccessRule{Name: name, UserAgents: []string{"*"}, Action: policy.Deny, DryRun: dry != ""}
		check.Same(t, 0, len(g.Add(&rule, fmt.Sprintf("p.yaml:%d", i+1), nil, false)), "faults of %s", w)
	}
	if g.Compile(); in != "-" {
		g.Map.Namespace, g.Map.Name, _ = strings.Cut(in, "/")
	}
	r.rules = g
}

// use sends so many requests that match a rule.
func (r *replica) use(name string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.rules.All() {
		for range times {
			if g.Name == name {
				_, _, _ = g.Enter(bound.Source{User: "jane"}, time.Now())
			}
		}
	}
}

// entries is a table: name=status/reason[/[message][/standby that answers]] of each APIService, or
// name=Local, or of a standby itself, APIService/name. One with the standby "hidden" is hidden by the policy. An
// unchanged verdict of r keeps its time.
func (s *stage) entries(r *replica, words []string) (all []*registry.Entry) {
	for _, w := range words {
		name, verdict, _ := strings.Cut(w, "=")
		parts := append(strings.Split(verdict, "/"), "", "", "")
		e := &registry.Entry{
			Name: name, Object: s.object(name), GroupVersion: schema.GroupVersion{Group: name}, Backend: &registry.Backend{},
			Verdict: registry.Verdict{Status: corev1.ConditionStatus(parts[0]), Reason: parts[1], Message: cmp.Or(parts[2], "m"), Since: time.Now()},
		}
		if parts[3] == "hidden" {
			e.Hidden = "policy.yaml:1"
		} else if parts[3] != "" {
			e.StandIn = &registry.Entry{Name: parts[3]}
		}
		if strings.Contains(name, "/") {
			e.Rule = &policy.Rule{}
		}
		if verdict == "Local" {
			e.Backend, e.Verdict.Status, e.Verdict.Reason = nil, "True", "Local"
		}
		if r != nil {
			for _, old := range r.entries {
				if old.Name == name && old.Verdict.Status == e.Verdict.Status && old.Verdict.Reason == e.Verdict.Reason {
					e.Verdict.Since = old.Verdict.Since
				}
			}
		}
		all = append(all, e)
	}
	return all
}
