package kubelet

import (
	"context"
	"net"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Join creates a ready Node object with this kubelet's address.
func (k *Kubelet) Join(ctx context.Context, core kubernetes.Interface, name string) (err error) {
	defer try.Catch(&err)
	node := try.Get(core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
	}}, metav1.CreateOptions{}))
	// Admission taints every new node as not ready, and the controller that removes the taint is not running.
	node.Spec.Taints = nil
	node = try.Get(core.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}))
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.Now()
	node.Status = corev1.NodeStatus{
		Capacity: size, Allocatable: size,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: k.cfg.Address}, {Type: corev1.NodeHostName, Address: name}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(k.listen.Addr().(*net.TCPAddr).Port)}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
	try.Get(core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.node = name
	return nil
}

// Run creates a pod with one container, main, which is bound to this node and running. The
// namespace's default ServiceAccount must exist.
func (k *Kubelet) Run(ctx context.Context, core kubernetes.Interface, namespace, name string) (c *Container, err error) {
	defer try.Catch(&err)
	c = &Container{Dir: try.Get(os.MkdirTemp(k.cfg.Dir, name+"-")), pod: name, namespace: namespace, started: time.Now(), ctx: k.ctx}
	k.mu.Lock()
	node := k.node
	k.containers[namespace+"/"+name] = c
	k.mu.Unlock()
	pod := try.Get(core.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: containerName, Image: "none", Stdin: true}},
		},
	}, metav1.CreateOptions{}))
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, HostIP: k.cfg.Address,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerName, Image: "none", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	try.Get(core.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}))
	return c, nil
}
