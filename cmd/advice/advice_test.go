package advice

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// What names a missing Service is what must be corrected: the APIService, or the policy.
func TestWhoNamesTheService(t *testing.T) {
	e := &registry.Entry{Backend: &registry.Backend{Namespace: "a", Service: "b"}, Verdict: registry.Verdict{Reason: registry.ReasonServiceNotFound}}
	check.Same(t, "service a/b does not exist: create it, or correct spec.service of the APIService", Of(e), "of an APIService")
	e.Rule = &policy.Rule{Where: "policy.yaml:7"}
	check.Same(t, "service a/b does not exist: create it, or correct service at policy.yaml:7", Of(e), "of a further backend")
}
