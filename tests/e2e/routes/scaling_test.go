//go:build e2e

package routes

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// patience limits what an autoscaler does: KEDA, Prometheus and its adapter look once a second.
const patience = time.Minute

// scale starts the autoscaler, as a client of Fairlead.
func (w *world) scale(t *testing.T) {
	t.Helper()
	must.Get(w.StartControllerManager(t.Context(), w.front.Endpoint, "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s"))(t)
}

// scaler is a HorizontalPodAutoscaler and its Deployment.
type scaler struct{ namespace, name, deployment string }

// has waits until the Deployment has so many replicas.
func (w *world) has(t *testing.T, s scaler, replicas int32) {
	t.Helper()
	took := suite.Eventually(t, patience, fmt.Sprintf("%s has %d replicas", s.deployment, replicas), func() (bool, string) {
		d := must.Get(w.core.AppsV1().Deployments(s.namespace).Get(t.Context(), s.deployment, metav1.GetOptions{}))(t)
		return *d.Spec.Replicas == replicas, fmt.Sprint(*d.Spec.Replicas, w.run(t, "", "-n", s.namespace, "describe", "hpa", s.name).Out)
	})
	t.Logf("%s has %d replicas after %s", s.deployment, replicas, took.Round(time.Millisecond))
}

// active waits until the scaler's condition ScalingActive has a status, and returns its message.
func (w *world) active(t *testing.T, s scaler, want corev1.ConditionStatus) (message string) {
	t.Helper()
	took := suite.Eventually(t, patience, fmt.Sprintf("%s: ScalingActive is %s", s.name, want), func() (bool, string) {
		h, err := w.core.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Get(t.Context(), s.name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		var is corev1.ConditionStatus
		is, message = scalingActive(h)
		return is == want, fmt.Sprintf("%s: %s", is, message)
	})
	t.Logf("%s: ScalingActive is %s after %s: %s", s.name, want, took.Round(time.Millisecond), message)
	return message
}

func scalingActive(h *autoscalingv2.HorizontalPodAutoscaler) (status corev1.ConditionStatus, message string) {
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			return c.Status, c.Reason + ": " + c.Message
		}
	}
	return corev1.ConditionUnknown, ""
}

// steady fails the test if ScalingActive of the scaler is anything but True before done is called.
func (w *world) steady(t *testing.T, s scaler) (done func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended, seen := make(chan struct{}), 0
	watching, err := w.core.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.name})
	must.Do(t, err)
	go func() { // ends with ctx
		defer close(ended)
		for e := range watching.ResultChan() {
			if h, ok := e.Object.(*autoscalingv2.HorizontalPodAutoscaler); ok {
				if is, message := scalingActive(h); is != corev1.ConditionTrue {
					t.Errorf("%s: ScalingActive is %s: %s", s.name, is, message)
				}
				seen++
			}
		}
	}()
	done = sync.OnceFunc(func() {
		stop()
		<-ended
		if seen == 0 {
			t.Errorf("%s: nothing was seen", s.name)
		}
	})
	t.Cleanup(done) // after a failure
	return done
}
