package registry

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// While nobody lists the namespaces, a policy that selects by their labels is not in force, and the table not complete
// without one. It delays no later policy.
func TestPolicyWaitsForLabels(t *testing.T) {
	const (
		head   = "apiVersion: fairlead.dev/v1\nkind: Policy\nroutes:\n- apiService: v1.a.io\n"
		hidden = head + "  hidden: true\n"
		labels = head + "  backends:\n  - service: {namespace: x, name: gold}\n    when: {namespaceLabels: {matchLabels: {tier: gold}}}\n"
	)
	r := must.Get(New(Config{Client: &rest.Config{Host: "http://127.0.0.1:1"}, Policy: "configmap:kube-system/policy"}))(t)
	o := newObjects(r.awaited...)
	within, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	g, ctx := errgroup.WithContext(within)
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
	stop()
	_ = g.Wait() // that of ctx
}
