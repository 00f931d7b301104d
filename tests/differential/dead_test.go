//go:build e2e

package differential

import (
	"fmt"
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

// TestDeadBackend runs kube-controller-manager through Fairlead while a backend is dead: garbage is
// collected, and a namespace stays because nobody can list its widgets.
func TestDeadBackend(t *testing.T) {
	w := newWorld(t)
	widgets := w.extend(t, "widgets", extension.Config{}, map[string]priority{"widgets.example.com/v1": {900, 10}})
	suite.Eventually(t, 30*time.Second, "it is discovered", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/apis", http.Header{"Accept": {"application/json" + asV2}})
		return strings.Contains(a.Body, `"widgets"`) && !strings.Contains(a.Body, "Stale"), a.Body
	})
	must.Get(w.StartControllerManager(t.Context(), w.front.Endpoint))(t)
	w.collects(t)
	must.Do(t, widgets.Set(extension.Fault{Kind: extension.Dead}))
	suite.Eventually(t, 30*time.Second, "it is unavailable", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/apis/widgets.example.com/v1", nil)
		return a.Code == http.StatusServiceUnavailable && strings.Contains(a.Body, "is unavailable"), a.Body
	})
	w.namespace(t, "held")
	namespaces := w.core.CoreV1().Namespaces()
	must.Do(t, namespaces.Delete(t.Context(), "held", metav1.DeleteOptions{}))
	held := func() (bool, string) {
		ns, err := namespaces.Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the namespace is gone although its widgets could not be listed: %v", err)
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue {
				return strings.Contains(c.Message, "widgets.example.com"), c.Message
			}
		}
		return false, "no such condition"
	}
	suite.Eventually(t, time.Minute, "the namespace says what holds it", held)
	w.collects(t)
	held()
	must.Do(t, widgets.Set())
	suite.Eventually(t, 3*time.Minute, "the namespace is gone", func() (bool, string) {
		ns, err := namespaces.Get(t.Context(), "held", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(ns, err)
	})
}

// collects waits until an object without its owner is collected.
func (w *world) collects(t *testing.T) {
	t.Helper()
	maps := w.core.CoreV1().ConfigMaps("default")
	owner := must.Get(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owner-"}}, metav1.CreateOptions{}))(t)
	owned := must.Get(maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "owned-", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID},
	}}}, metav1.CreateOptions{}))(t)
	must.Do(t, maps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}))
	suite.Eventually(t, 2*time.Minute, "what is owned is collected", func() (bool, string) {
		_, err := maps.Get(t.Context(), owned.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), "it is still there"
	})
}
