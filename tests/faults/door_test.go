//go:build e2e

package faults

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// door is one Fairlead under test.
type door struct {
	*cluster.Front
	w     *world
	lane  string
	admin *http.Client // of its admin port
	now   atomic.Pointer[map[string]float64]
}

// newDoor starts a Fairlead in front of both kube-apiservers. It ends with the test.
func (w *world) newDoor(t *testing.T, lane string, args ...string) *door {
	t.Helper()
	return w.newDoorTo(t, lane, []string{w.EndpointOf(0).URL, w.EndpointOf(1).URL}, args...)
}

// newDoorTo is newDoor in front of the given kube-apiservers.
func (w *world) newDoorTo(t *testing.T, lane string, servers []string, args ...string) *door {
	t.Helper()
	args = append([]string{"--http2=" + strconv.FormatBool(lane == "h2"), "--local-apiserver=" + strings.Join(servers, ",")}, args...)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Name: w.name("fairlead"), Args: args}))(t)
	t.Cleanup(front.Part.Kill)
	d := &door{Front: front, w: w, lane: lane, admin: w.client()}
	d.follow(t)
	return d
}

// get requests path from the admin port.
func (d *door) get(ctx context.Context, path string) (string, error) {
	return ask.Get(ctx, d.admin, d.Admin.URL+path)
}
