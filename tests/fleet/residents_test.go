//go:build e2e

package fleet

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// nodes is the number of hollow kubelets, each a process.
const nodes = 20

// leaders are the names of Leases whose holders must not change.
var leaders = []string{"kube-controller-manager", "kube-scheduler"}

// settle starts the clients of the front door.
func (w *world) settle(t *testing.T) {
	t.Helper()
	kubemark, scheduler := suite.Tool(t, "kubemark"), suite.Tool(t, "kube-scheduler")
	suite.Tool(t, "kube-controller-manager")
	netns.Hide(t, "/var/lib/kubelet")
	manager := must.Get(w.StartControllerManager(t.Context(), front(w.Cluster), "--leader-elect=true", "--controllers=node-lifecycle-controller"))(t)
	config := w.kubeconfig(t, "kube-scheduler", cluster.Leaf{User: "system:kube-scheduler"})
	second := must.Get(w.Run(t.Context(), cluster.Command{Name: "kube-scheduler", Path: scheduler, Args: []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--leader-elect=true",
	}}))(t)
	w.leading = []*cluster.Part{manager, second}
	for i := range nodes {
		name := fmt.Sprintf("hollow-%d", i)
		part := must.Get(w.Run(t.Context(), cluster.Command{
			Name: name, Path: kubemark, Env: []string{"TMPDIR=" + w.Dir()},
			Args: []string{
				"--morph=kubelet", "--name=" + name, "--use-host-image-service=false",
				"--kubeconfig=" + w.kubeconfig(t, name, cluster.Leaf{User: "system:node:" + name, Groups: []string{"system:nodes"}}),
				fmt.Sprintf("--kubelet-port=%d", 10300+i), "--kubelet-read-only-port=0", // below the ports of package cluster
			},
		}))(t)
		w.kubelets = append(w.kubelets, part)
	}
}

// steady waits until all nodes are ready and both leaders have renewed their Leases since the call.
// It returns that state.
func (w *world) steady(t *testing.T) (s state) {
	t.Helper()
	since := time.Now()
	// 3 min: twenty kubelets start at once on two cores.
	suite.Eventually(t, 3*time.Minute, "all nodes are ready, and both leaders lead", func() (bool, string) {
		s = w.residents(t)
		return s.ready == nodes && len(s.holders) == len(leaders) && s.renewed.After(since), fmt.Sprintf("%+v", s)
	})
	return s
}

func (w *world) kubeconfig(t *testing.T, name string, l cluster.Leaf) string {
	t.Helper()
	pair := must.Get(w.PKI.Client.Issue(name, l))(t)
	file := filepath.Join(w.Dir(), name+".kubeconfig")
	must.Do(t, front(w.Cluster).WriteKubeconfig(file, cluster.Credentials{Pair: pair}))
	return file
}

// state is the state of nodes and leaders.
type state struct {
	ready   int                  // nodes
	since   map[string]time.Time // :: node → when its readiness last changed
	holders map[string]string    // :: Lease → its holder and number of transitions
	renewed time.Time            // the older of the Leases' last renewals
	grumble int                  // lines of kubelets' logs that report failed renewals
}

// residents returns the state, through a kube-apiserver that is not being stopped.
func (w *world) residents(t *testing.T) state {
	t.Helper()
	s := state{since: map[string]time.Time{}, holders: map[string]string{}}
	list := must.Get(w.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for _, n := range list.Items {
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				s.since[n.Name] = c.LastTransitionTime.Time
				if c.Status == corev1.ConditionTrue {
					s.ready++
				}
			}
		}
	}
	for _, name := range leaders {
		l, err := w.core.CoordinationV1().Leases("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil {
			continue // it has no holder yet
		}
		s.holders[name] = holder(l)
		if at := l.Spec.RenewTime.Time; s.renewed.IsZero() || at.Before(s.renewed) {
			s.renewed = at
		}
	}
	for _, k := range w.kubelets {
		log := must.Get(os.ReadFile(k.LogFile()))(t)
		s.grumble += bytes.Count(log, []byte("Failed to update lease"))
	}
	return s
}

func holder(l *coordinationv1.Lease) string {
	turn := int32(0)
	if l.Spec.LeaseTransitions != nil {
		turn = *l.Spec.LeaseTransitions
	}
	return fmt.Sprintf("%s, change %d", *l.Spec.HolderIdentity, turn)
}

// unmoved fails the test if the state has changed since before, or a client has exited. It restarts
// such a client for the next round.
func (w *world) unmoved(t *testing.T, before state) {
	t.Helper()
	after := w.residents(t)
	t.Logf("nodes ready: %d; failed renewals of nodes' Leases: %d", after.ready, after.grumble-before.grumble)
	for _, p := range slices.Concat(w.leading, w.kubelets) {
		select {
		case <-p.Done():
			why, _, _ := strings.Cut(p.Err().Error(), "\n")
			t.Errorf("%s; its log: %s", why, p.LogFile())
			must.Do(t, p.Restart(t.Context()))
		default:
		}
	}
	for _, name := range leaders {
		if after.holders[name] != before.holders[name] {
			t.Errorf("%s was led by %q, now by %q", name, before.holders[name], after.holders[name])
		}
	}
	for name, at := range before.since {
		if after.since[name] != at {
			t.Errorf("node %s changed its readiness at %s", name, after.since[name])
		}
	}
	if after.ready != nodes {
		t.Errorf("%d of %d nodes are ready", after.ready, nodes)
	}
}
