package registry

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// While nobody lists the namespaces, a policy that selects by their labels is not in force, and the table not complete
// without one. It delays no later policy. Labels are followed while one selects by them.
func TestPolicyWaitsForLabels(t *testing.T) {
	const (
		head   = "apiVersion: fairlead.dev/v1\nkind: Policy\nroutes:\n- apiService: v1.a.io\n"
		hidden = head + "  hidden: true\n"
		labels = head + "  backends:\n  - service: {namespace: x, name: gold}\n    when: {namespaceLabels: {matchLabels: {tier: gold}}}\n"
	)
	r := must.Get(New(Config{Client: &rest.Config{Host: "http://127.0.0.1:1"}, Policy: "configmap:kube-system/policy"}))(t)
	o := newObjects(r.awaited...)
	within, stop := context.WithCancel(t.Context())
	defer stop()
	g, ctx := errgroup.WithContext(within)
	followed := func(want bool) {
		must.Soon(t, 10*time.Second, fmt.Sprintf("labels followed, in vain: %t", want), func() bool {
			return (r.sources.cluster.fault() != nil) == want
		})
	}
	inForce := func(text string) string {
		if text != "" {
			objects, faults := directory.Decode("policy.yaml", []byte(text))
			r.policy.take(ctx, g, objects, faults)
		}
		b := r.changes.take()
		o.apply(&b)
		switch route := o.policy.of["v1.a.io"]; {
		case !o.read[kindPolicy]:
			return "none yet"
		case route.hidden:
			return "hidden"
		}
		return "labels"
	}
	check.Same(t, "none yet", inForce(labels), "the first policy")
	check.Same(t, "hidden", inForce(hidden), "a later one")
	check.Same(t, "hidden", inForce(labels), "again one with labels")
	r.policy.namespaces.Listed.Store(true)
	check.Same(t, "labels", inForce(""), "after the namespaces were listed")
	followed(true)
	check.Same(t, "hidden", inForce(hidden), "one without labels")
	followed(false)
	check.Same(t, "hidden", inForce(labels), "one that waits for the labels of now")
	stop()
	_ = g.Wait() // that of ctx
}

// Without a valid policy since the start what is valid of the ConfigMap holds, but no rule after a faulty Allow, which
// it might refuse; and what cannot be read ends nothing.
func TestPolicyThatWasNeverValid(t *testing.T) {
	r := must.Get(New(Config{Client: &rest.Config{Host: "http://127.0.0.1:1"}, Policy: "configmap:kube-system/policy"}))(t)
	const head, match = "apiVersion: fairlead.dev/v1\nkind: Policy\nrules:\n", ", sources: [10.0.0.1]}\n"
	for _, tt := range []struct{ rules, want string }{
		{"- {", "in force:"},
		{strings.Repeat("- {name: o, action: Deny, colour: red"+match, 101), "in force:"}, // the decoder tells of the first 100
		{"- {name: a, action: Deny" + match + "- {name: b, action: Rate" + match + "- {name: c, action: Deny" + match, "in force: a c"},
		{"- {name: j, action: Deny, colour: red" + match + "- {name: k, action: Deny" + match, "in force: k"},
		{"- {name: l, action: Allow, colour: red" + match + "- {name: m, action: Deny" + match, "in force:"},
		{"- {name: n, action: Deny" + match + "rule: []\n", "in force:"},
		{"- {name: d, action: Deny" + match + "- {name: e, action: Allow, max: 1" + match + "- {name: f, action: Deny" + match, "in force: d"},
		{"- {", "in force: d"},
		{"- {name: g, action: Deny" + match, "valid: g"},
		{"- {name: h, action: Deny" + match + "- {name: i, action: Rate" + match, "in force: g"},
	} {
		objects, faults := r.policy.decode(map[string][]byte{"p.yaml": []byte(head + tt.rules)}, nil)
		r.policy.take(t.Context(), nil, objects, faults)
		b := r.changes.take()
		got := map[bool]string{true: "valid:", false: "in force:"}[len(b.policyFaults) == 0]
		for _, g := range b.policy.rules.All() {
			got += " " + g.Name
		}
		check.Same(t, tt.want, got, "after %s", tt.rules)
	}
	const list = "apiVersion: v1\nkind: List\nitems: [{apiVersion: fairlead.dev/v1, kind: Policy, routes: [{apiService: v1.a.io, hidden: true, colour: red}]}]"
	objects, _ := r.policy.decode(map[string][]byte{"p.yaml": []byte(list)}, nil)
	p, _ := r.policy.options.compile(objects, r.policy.namespaces, nil)
	check.Same(t, [2]int{1, 0}, [2]int{len(objects), len(p.of)}, "objects and routes of a List with an unknown field")
}
