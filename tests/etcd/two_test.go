//go:build e2e

package etcd

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testTwo runs two Fairleads with one etcd.
func testTwo(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{})
	server := s.extension(t, "widgets.example.com/v1")
	must.Get(s.doors[0].services.Create(t.Context(), s.remote(widgetsAPI, server), metav1.CreateOptions{}))(t)
	t.Run("what is written to one is routed by both", func(t *testing.T) {
		for _, d := range s.doors {
			d.becomes(t, widgets, http.StatusOK)
		}
	})
	available(t, s.doors[0], "True")
	t.Run("the status is written once", func(t *testing.T) { s.quiet(t, 2) })
	t.Run("by one of them", func(t *testing.T) {
		if n := len(s.writers(t)); n != 1 {
			t.Errorf("%d Fairleads write statuses, want 1", n)
		}
		o := must.Get(s.doors[0].services.Get(t.Context(), widgetsAPI, metav1.GetOptions{}))(t)
		for _, f := range o.ManagedFields {
			if f.Subresource == "status" && f.Manager != "fairlead" {
				t.Errorf("another manager of the status: %+v", f)
			}
		}
	})
	t.Run("what others write to the status does not start a fight", func(t *testing.T) {
		must.Get(s.doors[1].services.Patch(t.Context(), widgetsAPI, types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Other","status":"True"}]}}`), metav1.PatchOptions{}, "status"))(t)
		s.quiet(t, 3)
	})
	t.Run("the leader is killed", func(t *testing.T) {
		led := s.writers(t)[0]
		led.Part.Kill()
		server.Close()
		other := s.doors[0]
		if other == led {
			other = s.doors[1]
		}
		// Its lease lasts 15 s, and a backend's failure is confirmed after a few.
		available(t, other, "False")
		must.Do(t, led.Part.Restart(t.Context()))
		led.becomes(t, widgets, http.StatusServiceUnavailable)
	})
	t.Run("what one deletes neither routes", func(t *testing.T) {
		must.Do(t, s.doors[1].services.Delete(t.Context(), widgetsAPI, metav1.DeleteOptions{}))
		for _, d := range s.doors {
			d.becomes(t, widgets, http.StatusNotFound)
		}
	})
}

// writers returns the Fairleads that have been elected.
func (s *site) writers(t *testing.T) (all []*door) {
	t.Helper()
	for _, d := range s.doors {
		log := must.Get(os.ReadFile(d.Part.LogFile()))(t)
		if strings.Contains(string(log), "writing statuses") {
			all = append(all, d)
		}
	}
	return all
}

// available waits for the APIService's Available condition.
func available(t *testing.T, d *door, status apiregistrationv1.ConditionStatus) {
	t.Helper()
	suite.Eventually(t, 40*time.Second, fmt.Sprintf("Available %s", status), func() (bool, string) {
		o, err := d.services.Get(t.Context(), widgetsAPI, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range o.Status.Conditions {
			if c.Type == "Available" && c.Status == status {
				return true, ""
			}
		}
		return false, text(t, o) + d.Part.Tail()
	})
}

// quiet requires that the key has been written at most so often, now and for some seconds.
func (s *site) quiet(t *testing.T, writes int64) {
	t.Helper()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); { // four times the pause between two writes of a status
		res, err := s.kv.Get(t.Context(), keys+widgetsAPI)
		must.Do(t, err)
		if len(res.Kvs) != 1 || res.Kvs[0].Version > writes {
			t.Fatalf("want one key, written at most %d times: %v", writes, res.Kvs)
		}
		pause(t.Context(), 100*time.Millisecond)
	}
}
