//go:build e2e

package faults

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// door is one Fairlead under test.
type door struct {
	*cluster.Front
	w     *world
	admin *http.Client // of its admin port
	now   atomic.Pointer[map[string]float64]
}

// newDoor starts a Fairlead in front of both kube-apiservers. It ends with the test.
func (w *world) newDoor(t *testing.T, args ...string) *door {
	t.Helper()
	args = append([]string{"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL}, args...)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: w.name("fairlead"), Args: args}))(t)
	t.Cleanup(front.Part.Kill)
	d := &door{Front: front, w: w, admin: w.clients(1, true)[0]}
	beside(t, d.follow)
	return d
}

// follow reads the metrics until ctx ends: one reader for all cases, because a scrape costs
// Fairlead some milliseconds.
func (d *door) follow(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if s, err := ask.Metrics(ctx, d.admin, d.Admin.URL); err == nil {
			d.now.Store(&s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// scrape returns the latest metrics.
func (d *door) scrape() map[string]float64 {
	if s := d.now.Load(); s != nil {
		return *s
	}
	return nil
}

// ends waits until Fairlead has exited.
func (d *door) ends(t *testing.T, most time.Duration) {
	t.Helper()
	select {
	case <-d.Part.Done():
	case <-time.After(most):
		t.Fatalf("still running after %s", most)
	}
}
