//go:build e2e

package differential

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// TestFreshResources measures how soon kubectl can use a resource that appears in a running backend
// or in a CRD.
func TestFreshResources(t *testing.T) {
	w := newWorld(t)
	kubectl := w.kubectl(t)
	s := w.script(t, "meters", "meters.example.com", nil, "gauges")
	listed := func(resource string) func() (bool, string) {
		return func() (bool, string) {
			a := w.ask(t, w.front.Endpoint, "/apis", http.Header{"Accept": {"application/json" + asV2}})
			return strings.Contains(a.Body, `"resource":"`+resource+`"`), a.Body
		}
	}
	suite.Eventually(t, 30*time.Second, "gauges are discovered", listed("gauges"))

	suite.Eventually(t, 30*time.Second, "what came with the start is over", s.quiet)
	s.add("valves")
	took := suite.Eventually(t, time.Minute, "valves are discovered without any change of the APIService", listed("valves"))
	t.Logf("a backend's new resource was discovered after %s", took)
	if out := kubectl("get", "valves"); !strings.Contains(out, "the-only-one") {
		t.Errorf("kubectl get valves: %s", out)
	}
	suite.Eventually(t, time.Minute, "valves are explained", func() (bool, string) {
		out := kubectl("explain", "valves")
		return strings.Contains(out, "Valve is one of the script."), out
	})

	s.add("pipes")
	w.lookAgain(t, "v1.meters.example.com")
	took = suite.Eventually(t, 2*time.Second, "pipes are discovered after a change of the APIService", listed("pipes"))
	t.Logf("a new resource was discovered %s after a change of the APIService", took)
	suite.Eventually(t, 2*time.Second, "pipes are explained", func() (bool, string) {
		out := kubectl("explain", "pipes.spec")
		return strings.Contains(out, "What it should be."), out
	})

	w.define(t, strings.ReplaceAll(fmt.Sprintf(crd, "crontab", "stable.example.com", "CronTab", "ct"),
		"{type: object, x-kubernetes-preserve-unknown-fields: true}", "{type: object, properties: {spec: {type: object, description: When and what., properties: {cron: {type: string}}}}}"))
	took = suite.Eventually(t, 10*time.Second, "a CRD's resources are discovered", listed("crontabs"))
	t.Logf("a CRD was discovered after %s", took)
	took = suite.Eventually(t, 10*time.Second, "a CRD is explained", func() (bool, string) {
		out := kubectl("explain", "crontabs.spec")
		return strings.Contains(out, "When and what."), out
	})
	t.Logf("the CRD was explained after another %s", took)
	if out := kubectl("apply", "--validate=strict", "-f", w.file(t, "kron")); !strings.Contains(out, `unknown field "spec.kron"`) {
		t.Errorf("applying a field that is not in the schema: %s", out)
	}
	if out := kubectl("apply", "--validate=strict", "-f", w.file(t, "cron")); !strings.Contains(out, "created") {
		t.Errorf("applying: %s", out)
	}
}

func (w *world) file(t *testing.T, field string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "crontab.yaml")
	body := "apiVersion: stable.example.com/v1\nkind: CronTab\nmetadata: {name: daily, namespace: default}\nspec: {" + field + ": daily}\n"
	must.Do(t, os.WriteFile(name, []byte(body), 0o600))
	return name
}

// kubectl returns a function that runs kubectl through Fairlead, each time with an empty cache. It
// returns all output, errors included.
func (w *world) kubectl(t *testing.T) func(args ...string) string {
	t.Helper()
	path := suite.Tool(t, "kubectl")
	config := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, w.front.Endpoint.WriteKubeconfig(config, w.Admin()))
	return func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig", config, "--cache-dir", t.TempDir()}, args...)...)
		out, _ := cmd.CombinedOutput() // the output says more than the exit code
		return string(out)
	}
}
