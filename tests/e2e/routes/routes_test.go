//go:build e2e

package routes

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// byOwner is what KEDA says of its metrics: its own HorizontalPodAutoscalers ask with that label.
const byOwner = "when: {labelKeys: [scaledobject.keda.sh/name]}"

// TestTwoMetricServers has autoscalers scale on metrics of prometheus-adapter and of KEDA, in one
// namespace and by one APIService.
func TestTwoMetricServers(t *testing.T) {
	w, q := newWorld(t), &queues{}
	q.orders.Store(1)
	q.mails.Store(1)
	prometheus := w.prometheus(t, q)
	adapter := w.adapter(t, prometheus)
	keda := w.keda(t)
	must.Get(w.StartControllerManager(t.Context(), w.front.Endpoint, "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s"))(t)
	w.kubectl.Feed(t, fmt.Sprintf(shop, prometheus), "apply", "--server-side", "-f", "-")
	orders, mails := scaler{"shop", "orders", "orders"}, scaler{"shop", "keda-hpa-mails", "mails"}

	// Without a route, the APIService is prometheus-adapter's alone.
	w.active(t, orders, "True")
	w.active(t, mails, "False")

	w.routes(t, external, w.route(t, keda.backend, byOwner))
	w.active(t, mails, "True")
	w.documents(t, "orders_waiting", "externalmetrics")
	for path, want := range map[string]string{"s0-prometheus?labelSelector=scaledobject.keda.sh%2Fname%3Dmails": "keda/keda-metrics-apiserver", "orders_waiting": "monitoring/prometheus-adapter"} {
		explain := exec.CommandContext(t.Context(), filepath.Join(w.dir, "kubectl-fairlead"), "explain", "/apis/"+external+"/namespaces/shop/"+path, "--kubeconfig="+w.kubectl.Kubeconfig)
		a := suite.Run(t, explain, "")
		check.Same(t, true, strings.Contains(a.Out, "forwarded to "+want+":"), "explain %s: exit code %d, forwarded to %s\n%s%s", path, a.Code, want, a.Out, a.Errs)
	}
	q.orders.Store(3)
	q.mails.Store(2)
	w.has(t, orders, 3)
	w.has(t, mails, 2)

	for _, tt := range []struct {
		killed     server
		gone, goes scaler
		queue      func(int32)
		replicas   int32
	}{
		{keda, mails, orders, q.orders.Store, 4},
		{adapter, orders, mails, q.mails.Store, 5},
	} {
		t.Run(tt.killed.backend.Service+" is killed", func(t *testing.T) {
			steady := w.steady(t, tt.goes)
			tt.killed.Kill()
			w.active(t, tt.gone, "False")
			tt.queue(tt.replicas)
			w.has(t, tt.goes, tt.replicas)
			w.documents(t, "orders_waiting", "externalmetrics")
			must.Do(t, tt.killed.Restart(t.Context()))
			w.active(t, tt.gone, "True")
			steady()
		})
	}
}

// documents waits until the document of the group-version has all these resources.
func (w *world) documents(t *testing.T, resources ...string) {
	t.Helper()
	suite.Eventually(t, patience, fmt.Sprint("the document has ", resources), func() (bool, string) {
		r := must.Get(ask.Do(t.Context(), w.admin, http.MethodGet, w.front.Endpoint.URL+"/apis/"+external, nil, ""))(t)
		ok := r.Code == http.StatusOK
		for _, name := range resources {
			ok = ok && strings.Contains(r.Body, fmt.Sprintf(`"name":%q`, name))
		}
		return ok, fmt.Sprint(r.Code, " ", r.Body)
	})
}

// shop has an autoscaler of ours, and one that KEDA makes.
const shop = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: orders}
spec: {selector: {matchLabels: {app: orders}}, template: {metadata: {labels: {app: orders}}, spec: {containers: [{name: orders, image: orders}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: mails}
spec: {selector: {matchLabels: {app: mails}}, template: {metadata: {labels: {app: mails}}, spec: {containers: [{name: mails, image: mails}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {namespace: shop, name: orders}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: orders}, minReplicas: 1, maxReplicas: 10,
  metrics: [{type: External, external: {metric: {name: orders_waiting}, target: {type: AverageValue, averageValue: "1"}}}]}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {namespace: shop, name: mails}
spec: {scaleTargetRef: {name: mails}, minReplicaCount: 1, maxReplicaCount: 10, pollingInterval: 1,
  triggers: [{type: prometheus, metadata: {serverAddress: %q, query: sum(mails_waiting), threshold: "1"}}]}
`

const patience = time.Minute // limits what an autoscaler does: KEDA, Prometheus and its adapter look once a second

type scaler struct{ namespace, name, deployment string }

func (w *world) has(t *testing.T, s scaler, replicas int32) {
	t.Helper()
	took := suite.Eventually(t, patience, fmt.Sprintf("%s has %d replicas", s.deployment, replicas), func() (bool, string) {
		d := must.Get(w.core.AppsV1().Deployments(s.namespace).Get(t.Context(), s.deployment, metav1.GetOptions{}))(t)
		return *d.Spec.Replicas == replicas, fmt.Sprint(*d.Spec.Replicas, w.kubectl.Try(t, "", "-n", s.namespace, "describe", "hpa", s.name).Out)
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
				is, message := scalingActive(h)
				check.Same(t, corev1.ConditionTrue, is, "ScalingActive of %s: %s", s.name, message)
				seen++
			}
		}
	}()
	done = sync.OnceFunc(func() {
		stop()
		<-ended
		check.Same(t, true, seen != 0, "%s: nothing was seen", s.name)
	})
	t.Cleanup(done) // after a failure
	return done
}
