//go:build e2e

package fleet

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// settle starts the clients of the front door.
func (w *world) settle(t *testing.T) {
	t.Helper()
	kubemark, scheduler := suite.Tool(t, "kubemark"), suite.Tool(t, "kube-scheduler")
	suite.Tool(t, "kube-controller-manager")
	netns.Hide(t, "/var/lib/kubelet")
	run := func(c cluster.Command) { w.residents = append(w.residents, must.Get(w.Run(t.Context(), c))(t)) }
	w.residents = append(w.residents, must.Get(w.StartControllerManager(t.Context(), w.front, "--leader-elect=true", "--controllers=node-lifecycle-controller"))(t))
	config := must.Get(w.Kubeconfig(w.front, "kube-scheduler", cluster.Leaf{User: "system:kube-scheduler"}))(t)
	run(cluster.Command{Name: "kube-scheduler", Path: scheduler, Args: []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config, "--bind-address=127.0.0.1", "--leader-elect=true",
	}})
	for i := range w.nodes {
		name := fmt.Sprintf("hollow-%d", i)
		config := must.Get(w.Kubeconfig(w.front, name, cluster.Leaf{User: "system:node:" + name, Groups: []string{"system:nodes"}}))(t)
		run(cluster.Command{Name: name, Path: kubemark, Env: []string{"TMPDIR=" + w.Dir()}, Args: []string{
			"--morph=kubelet", "--name=" + name, "--use-host-image-service=false", "--kubeconfig=" + config,
			fmt.Sprintf("--kubelet-port=%d", 10300+i), "--kubelet-read-only-port=0", // below the ports of package cluster
		}})
	}
}

// steady waits until all nodes are ready and both leaders have renewed their Leases since the call.
// It returns that state.
func (w *world) steady(t *testing.T) (s map[string]string) {
	t.Helper()
	since := time.Now()
	// 3 min: twenty kubelets start at once on two cores.
	suite.Eventually(t, 3*time.Minute, "all nodes are ready, and both leaders lead", func() (bool, string) {
		var renewed time.Time
		s, renewed = w.state(t)
		return len(s) == w.nodes+2 && renewed.After(since), fmt.Sprint(s)
	})
	return s
}

// state returns, through a kube-apiserver that is not being stopped, since when each node is ready
// and who leads, and the older of the leaders' last renewals.
func (w *world) state(t *testing.T) (s map[string]string, renewed time.Time) {
	t.Helper()
	s = map[string]string{}
	for _, n := range must.Get(w.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t).Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				s[n.Name] = c.LastTransitionTime.String()
			}
		}
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		l, err := w.core.CoordinationV1().Leases("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.LeaseTransitions == nil || l.Spec.RenewTime == nil {
			continue // it has no holder yet
		}
		s[name] = fmt.Sprintf("%s, change %d", *l.Spec.HolderIdentity, *l.Spec.LeaseTransitions)
		if at := l.Spec.RenewTime.Time; renewed.IsZero() || at.Before(renewed) {
			renewed = at
		}
	}
	return s, renewed
}

// unmoved fails the test if the state has changed since before, or a client has exited.
func (w *world) unmoved(t *testing.T, before map[string]string) {
	t.Helper()
	after, _ := w.state(t)
	check.Same(t, before, after, "since when nodes are ready, and who leads")
	for _, p := range w.residents {
		if p.Ended() {
			t.Fatalf("%s exited: %v", p.Name(), p.Err())
		}
	}
}
