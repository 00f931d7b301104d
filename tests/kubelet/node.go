package kubelet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Join creates a ready Node object with this kubelet's address.
func (k *Kubelet) Join(ctx context.Context, core kubernetes.Interface, name string) error {
	node, err := core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating node: %w", err)
	}
	// Admission taints every new node as not ready, and the controller that removes the taint is
	// not running.
	node.Spec.Taints = nil
	if node, err = core.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("removing the node's taint: %w", err)
	}
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.Now()
	node.Status = corev1.NodeStatus{
		Capacity: size, Allocatable: size,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: name}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(k.port())}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
	if _, err := core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reporting the node ready: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.node = name
	return nil
}

// Run creates a pod with one container, main, which is bound to this node and running. The
// namespace's default ServiceAccount must exist.
func (k *Kubelet) Run(ctx context.Context, core kubernetes.Interface, namespace, name string) (*Container, error) {
	k.mu.Lock()
	node := k.node
	k.mu.Unlock()
	c, err := k.newContainer(namespace, name)
	if err != nil {
		return nil, err
	}
	no := false
	pod, err := core.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: containerName, Image: "none", Stdin: true, TTY: false}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating pod: %w", err)
	}
	now := metav1.NewTime(time.Now())
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, HostIP: "127.0.0.1",
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerName, Image: "none", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	if _, err := core.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("reporting the pod running: %w", err)
	}
	return c, nil
}
