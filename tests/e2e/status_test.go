//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// A separate group, so that this case and others do not affect each other.
const adrift = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.adrift.example.org}
spec: {group: adrift.example.org, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: nowhere, name: nothing}}
`

// testStatus lets two replicas write statuses to a real kube-apiserver, whose own controllers write
// to the same objects.
func testStatus(t *testing.T, w *world) {
	rc := w.Cluster.Endpoint().RESTConfig(w.Admin())
	aggregation, leases := apiregistrationv1client.NewForConfigOrDie(rc), coordinationv1client.NewForConfigOrDie(rc)
	table := must.Get(registry.New(registry.Config{Client: rc}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	go func() { ended <- table.Run(ctx) }()
	for _, identity := range []string{"one", "two"} {
		writer := must.Get(status.New(status.Config{Table: table.Table, APIServices: aggregation.APIServices(), Leases: leases, Identity: identity}))(t)
		go func() { ended <- writer.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range 3 {
			<-ended
		}
	})

	kc := w.admin(t)
	conditions := func(want ...string) func() (bool, string) {
		return func() (bool, string) {
			out := kc.run(t, "get", "apiservice", "v1.adrift.example.org", "-o",
				`jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}`)
			got := strings.Split(strings.TrimSpace(out), "\n")
			slices.Sort(got) // their order depends on who wrote first
			return slices.Equal(got, want), out
		}
	}
	kc.feed(t, adrift, "apply", "-f", "-")
	t.Run("beside the apiserver's own", func(t *testing.T) {
		suite.Eventually(t, time.Minute, "both conditions", conditions(`Available=False ServiceNotFound: service/nothing in "nowhere" is not present`,
			`fairlead.dev/Available=False ServiceNotFound: service/nothing in "nowhere" is not present`))
	})
	t.Run("written once", func(t *testing.T) {
		out := kc.run(t, "get", "apiservice", "v1.adrift.example.org", "--show-managed-fields", "-o",
			`jsonpath={range .metadata.managedFields[?(@.subresource=="status")]}{.manager} {.operation};{end}`)
		if strings.Count(out, "fairlead Apply") != 1 {
			t.Errorf("managers of the status: %s", out)
		}
	})
	t.Run("taken away", func(t *testing.T) {
		kc.feed(t, strings.Replace(adrift, "{namespace: nowhere, name: nothing}", "null", 1), "apply", "-f", "-")
		suite.Eventually(t, time.Minute, "the condition to go", conditions("Available=True Local: Local APIServices are always available"))
	})
	kc.run(t, "delete", "apiservice", "v1.adrift.example.org")
}
