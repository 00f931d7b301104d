//go:build e2e

package differential

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// TestDeadBackends runs kube-controller-manager through Fairlead while backends are dead.
func TestDeadBackends(t *testing.T) {
	w := newWorld(t)
	readings := w.script(t, "readings", "readings.example.com", nil, "readings")
	widgets := w.extend(t, "widgets", extension.Config{}, map[string]priority{"widgets.example.com/v1": {900, 10}})
	suite.Eventually(t, 30*time.Second, "both are discovered", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/apis", http.Header{"Accept": {"application/json" + asV2}})
		return strings.Contains(a.Body, `"readings"`) && strings.Contains(a.Body, `"widgets"`) && !strings.Contains(a.Body, "Stale"), a.Body
	})
	must.Get(w.StartControllerManager(t.Context(), w.front.Endpoint))(t)
	w.collects(t)

	readings.kill()
	w.unavailable(t, "/apis/readings.example.com/v1")
	w.deleted(t, "without-readings")
	w.collects(t)

	must.Do(t, widgets.Set(extension.Fault{Kind: extension.Dead}))
	w.unavailable(t, "/apis/widgets.example.com/v1")
	w.namespace(t, "held")
	w.remove(t, "held")
	// Nobody can list its widgets, so the namespace must stay and report why.
	suite.Eventually(t, time.Minute, "the namespace says what holds it", func() (bool, string) {
		ns, err := w.core.CoreV1().Namespaces().Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the namespace is gone although its widgets could not be listed: %v", err)
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue {
				return strings.Contains(c.Message, "widgets.example.com"), c.Message
			}
		}
		return false, "no such condition"
	})
	w.collects(t)
	if _, err := w.core.CoreV1().Namespaces().Get(t.Context(), "held", metav1.GetOptions{}); err != nil {
		t.Fatalf("the namespace is gone although its widgets could not be listed: %v", err)
	}
	must.Do(t, widgets.Set())
	w.gone(t, "held")
}

func (w *world) unavailable(t *testing.T, path string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, path+" is unavailable", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, path, nil)
		return a.Code == http.StatusServiceUnavailable && strings.Contains(a.Body, "is unavailable"), a.Body
	})
}

func (w *world) remove(t *testing.T, namespace string) {
	t.Helper()
	must.Do(t, w.core.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}))
}

func (w *world) deleted(t *testing.T, namespace string) {
	t.Helper()
	w.namespace(t, namespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "inside"}}
	must.Get(w.core.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}))(t)
	w.remove(t, namespace)
	w.gone(t, namespace)
}

func (w *world) gone(t *testing.T, namespace string) {
	t.Helper()
	took := suite.Eventually(t, 3*time.Minute, "namespace "+namespace+" is gone", func() (bool, string) {
		ns, err := w.core.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, ""
		}
		if err != nil {
			return false, err.Error()
		}
		return false, ns.Status.String()
	})
	t.Logf("namespace %s was gone after %s", namespace, took)
}

func (w *world) collects(t *testing.T) {
	t.Helper()
	maps := w.core.CoreV1().ConfigMaps("default")
	owner := must.Get(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}}, metav1.CreateOptions{}))(t)
	owned := must.Get(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owned-", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID},
	}}}, metav1.CreateOptions{}))(t)
	must.Do(t, maps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}))
	took := suite.Eventually(t, 2*time.Minute, "what is owned is collected", func() (bool, string) {
		_, err := maps.Get(t.Context(), owned.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), "it is still there"
	})
	t.Logf("garbage was collected after %s", took)
}
