//go:build e2e

package e2e

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testMetricsServer runs metrics-server, the most common extension server, and kubectl top.
func testMetricsServer(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b := cluster.Backend{Namespace: "kube-system", Service: "metrics-server", CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{"metrics.k8s.io/v1beta1"}}
	_, args, err := w.ExtensionArgs(&b)
	must.Do(t, err)
	// 10 s is the minimum.
	args = append(args, "--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP", "--metric-resolution=10s", "--kubelet-request-timeout=5s")
	must.Get(w.Run(ctx, cluster.Command{Name: "metrics-server", Path: suite.Tool(t, "metrics-server"), Args: args}))(t)
	must.Do(t, w.Register(ctx, b))
	kc := w.admin(t)
	kc.Cache = t.TempDir()
	var nodes suite.Answer
	suite.Eventually(t, time.Minute, "kubectl top nodes answers", func() (bool, string) {
		nodes = kc.Try(t, "", "top", "nodes")
		return nodes.Code == 0, nodes.Errs
	})
	// Times are rounded to milliseconds and usage is rounded up, so it may exceed the kubelet's figure by a thousandth.
	row := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	t.Run("top nodes", func(t *testing.T) {
		if got := row(nodes.Out); !regexp.MustCompile(`^NAME CPU\(cores\) CPU\(?%\)? MEMORY\(bytes\) MEMORY\(?%\)? harbour 25[01]m 25% 512Mi 50%$`).MatchString(got) {
			t.Errorf("top nodes says:\n%s", nodes.Out)
		}
	})
	t.Run("top pods", func(t *testing.T) {
		suite.Eventually(t, time.Minute, "kubectl top pods answers", func() (bool, string) { // a pod must have run for a whole period
			a := kc.Try(t, "", "top", "pods", "-n", "moorings", "--containers")
			return a.Code == 0 && regexp.MustCompile(`^POD NAME CPU\(cores\) MEMORY\(bytes\) buoy main 10[01]m 64Mi$`).MatchString(row(a.Out)), a.Out + a.Errs
		})
	})
}
