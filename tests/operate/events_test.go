//go:build e2e

package operate

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testEvents runs two replicas with exactly the rights of deploy/components/events, breaks a
// backend, and reads the Events about it.
func testEvents(t *testing.T, w *world) {
	rules := must.Get(os.ReadFile("../../deploy/components/events/rbac.yaml"))(t)
	w.apply(t, string(rules))
	server := w.serve(t, "told", nil)
	w.alone.Lock()
	defer w.alone.Unlock()
	w.clear(t)
	var fronts []*cluster.Front
	for i := range 2 {
		front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
			Path: w.fairlead, Name: fmt.Sprintf("events-%d", i), Args: []string{"--kubeconfig=" + w.account(t, "kube-system", "fairlead"), "--emit-events"},
		}))(t)
		defer front.Part.Kill()
		fronts = append(fronts, front)
	}
	for _, front := range fronts {
		w.serves(t, time.Minute, front.Endpoint, "/apis/told.example.com/v1", "")
	}
	suite.Eventually(t, time.Minute, "somebody leads", func() (bool, string) {
		lease, err := w.core.CoordinationV1().Leases("kube-system").Get(t.Context(), "fairlead-events", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "", fmt.Sprint(err)
	})
	must.Do(t, server.Set(extension.Fault{Kind: extension.Dead}))
	expect := func(kind, reason, text string) {
		t.Helper()
		suite.Eventually(t, time.Minute, reason, func() (bool, string) {
			list := must.Get(w.core.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=APIService,involvedObject.name=v1.told.example.com"}))(t)
			var found []corev1.Event
			for _, ev := range list.Items {
				if ev.Type == kind && ev.Reason == reason && strings.Contains(ev.Message, text) && ev.InvolvedObject.UID != "" {
					found = append(found, ev)
				}
			}
			return len(found) == 1, fmt.Sprint(list.Items) // from one of the two replicas
		})
	}
	expect(corev1.EventTypeWarning, "FailedDiscoveryCheck", "requests are answered with 503: ")
	must.Do(t, server.Set())
	expect(corev1.EventTypeNormal, "Available", "requests are forwarded again, after ")
	bad := strings.ReplaceAll(w.apiService("told", portOf(server), ""), base64.StdEncoding.EncodeToString(w.ca.PEM()), base64.StdEncoding.EncodeToString([]byte("no certificate")))
	w.apply(t, bad)
	expect(corev1.EventTypeWarning, "Faulty", "the CA bundle is not used: ")
	for _, front := range fronts {
		if log := w.logged(t, front); strings.Contains(log, "forbidden") {
			t.Errorf("something was forbidden:\n%s", log)
		}
	}
}
