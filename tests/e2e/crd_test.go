//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const knots = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: knots.rigging.example.org
spec:
  group: rigging.example.org
  scope: Namespaced
  names: {plural: knots, singular: knot, kind: Knot, shortNames: [kn]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.turns, statusReplicasPath: .status.turns}}
    additionalPrinterColumns:
    - {name: Turns, type: integer, jsonPath: .spec.turns}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              turns: {type: integer, minimum: 1, description: How often the line goes round.}
          status:
            type: object
            properties:
              turns: {type: integer}
`

const bowline = `{"apiVersion":"rigging.example.org/v1","kind":"Knot","metadata":{"name":"bowline"},"spec":{"turns":1}}`

// testCustomResources defines a resource and uses it immediately, as Helm charts with CRDs do.
func testCustomResources(t *testing.T, w *world) {
	ns, kc := w.namespace(t), w.admin(t)
	kc.Cache = t.TempDir()
	kc.Feed(t, knots, "apply", "-f", "-")
	kc.Run(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/knots.rigging.example.org")
	// Discovery is read from kube-apiserver some ten milliseconds after a change, and every 2 s. On
	// busy cores kube-apiserver itself lists a resource a while after it is Established.
	suite.Eventually(t, 10*time.Second, "it can be created", func() (bool, string) {
		a := kc.Try(t, bowline, "create", "-n", ns, "-f", "-")
		return a.Code == 0, a.Errs
	})

	if out := kc.Run(t, "get", "kn", "bowline", "-n", ns); !strings.Contains(out, "TURNS") {
		t.Errorf("the definition's column is missing:\n%s", out)
	}
	kc.Fail(t, "should be greater than or equal to 1", strings.Replace(bowline, `"turns":1`, `"turns":0`, 1), "apply", "-n", ns, "-f", "-")
	kc.Run(t, "scale", "knot/bowline", "--replicas=3", "-n", ns)
	kc.Run(t, "patch", "knot", "bowline", "-n", ns, "--subresource=status", "--type=merge", "-p", `{"status":{"turns":2}}`)
	if got := kc.Run(t, "get", "knot", "bowline", "-n", ns, "-o", "jsonpath={.spec.turns} {.status.turns}"); got != "3 2" {
		t.Errorf("spec and status %s, want 3 2", got)
	}
	listed := func(want string) func() (bool, string) {
		return func() (bool, string) {
			kc.Cache = t.TempDir()
			out := kc.Run(t, "api-resources", "--api-group=rigging.example.org", "-o", "name")
			return out == want, out
		}
	}
	suite.Eventually(t, time.Minute, "it is listed", listed("knots.rigging.example.org\n"))
	suite.Eventually(t, time.Minute, "it is explained", func() (bool, string) { // its OpenAPI is published in the background
		a := kc.Try(t, "", "explain", "knot.spec.turns")
		return strings.Contains(a.Out, "How often the line goes round."), a.Out + a.Errs
	})
	kc.Run(t, "delete", "crd", "knots.rigging.example.org", "--timeout=60s")
	suite.Eventually(t, time.Minute, "it is no longer listed", listed(""))
}
