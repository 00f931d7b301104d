//go:build e2e

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// drawRegistry changes a group's objects, and reverts most changes. Changes that clients should not
// notice have only the scope of the watches, whose connections may have to end.
func (w *world) drawRegistry(rng *rand.Rand) *act {
	g := w.groups[rng.IntN(len(w.groups))]
	kind, number := rng.IntN(8), rng.IntN(1000)
	a := &act{group: g.name, dose: 20 + rng.IntN(200), wrong: func() string { return w.everywhere(g) }}
	a.fault.Target, a.fault.Scopes, a.fault.Weak = g.name, []string{"watch:" + g.name}, true
	hurts := append(a.fault.Scopes, g.scope())
	does := func(push func(context.Context, *group) error, model func()) func(context.Context) error {
		return func(ctx context.Context) error { return w.change(ctx, g, model, push) }
	}
	switch kind {
	case 0, 1:
		a.fault.Kind, a.fault.Scopes = "registry: APIService retargeted", hurts
		a.begin = does(w.patchAPIService, func() { g.current = 1 - g.current })
	case 2:
		a.fault.Kind, a.fault.Scopes, a.fault.Weak = "registry: APIService deleted", append(hurts, "discovery"), false
		a.fault.Refusals = []int{http.StatusNotFound, http.StatusForbidden} // the local apiserver's; 403 for callers without credentials
		a.begin = does(w.deleteAPIService, func() { g.exists = false })
		a.end = does(w.createAPIService, func() { g.exists = true })
	case 3:
		a.fault.Kind = "registry: priority changed"
		a.begin = does(w.patchAPIService, func() { g.priority = int32(500 + number) })
	case 4:
		a.fault.Kind = "registry: endpoints removed"
		list := func(n int, listed bool) func() { // n of the three, beginning anywhere
			return func() {
				for i := range n {
					sites := g.services[g.current].sites
					sites[(number+i)%len(sites)].listed = listed
				}
			}
		}
		a.begin, a.end = does(w.patchEndpoints, list(1+number%2, false)), does(w.patchEndpoints, list(3, true))
	case 5:
		a.fault.Kind = "registry: CA rotated"
		a.begin = func(ctx context.Context) error { return w.rotate(ctx, g) }
	case 6:
		a.fault.Kind, a.fault.Scopes = "registry: bundle of a stranger", hurts
		a.begin = does(w.patchAPIService, func() { g.bundle = []*pki.CA{pki.NewCA("stranger")} })
		a.end = does(w.patchAPIService, func() { g.bundle = []*pki.CA{g.ca} })
	case 7:
		a.fault.Kind, a.fault.Scopes, a.fault.Weak = "registry: maintenance", hurts, false
		a.begin = does(w.patchAPIService, func() { g.maintenance = true })
		a.end = does(w.patchAPIService, func() { g.maintenance = false })
	}
	return a
}

// change changes the model of a group, and then the cluster by push. Sites that may answer from now
// on are allowed before. Others are forbidden when both doors have read the change: requests that
// begin later may not use anything older.
func (w *world) change(ctx context.Context, g *group, model func(), push func(context.Context, *group) error) error {
	w.mu.Lock()
	before := g.servingLocked()
	model()
	after := g.servingLocked()
	w.mu.Unlock()
	for _, x := range after {
		w.checker.allow(g.name, x.name)
	}
	if err := push(ctx, g); err != nil {
		return err
	}
	gone := slices.DeleteFunc(before, func(x *site) bool { return slices.Contains(after, x) })
	if len(gone) == 0 {
		return nil
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, x := range gone {
		w.checker.forbid(g.name, x.name)
	}
	return nil
}

// servingLocked returns the sites that may answer for a group.
func (g *group) servingLocked() (all []*site) {
	for _, x := range g.services[g.current].sites {
		if g.exists && x.listed {
			all = append(all, x)
		}
	}
	return all
}

// known waits until both doors have read the model of a group.
func (w *world) known(ctx context.Context, g *group) error {
	err := wait.PollUntilContextTimeout(ctx, look, 3*time.Minute, true, func(context.Context) (bool, error) { return w.everywhere(g) == "", nil })
	if err != nil {
		return fmt.Errorf("waiting until %s is known everywhere: %w", g.name, err)
	}
	return nil
}

func (w *world) patchAPIService(ctx context.Context, g *group) error {
	w.mu.Lock()
	annotations := map[string]any{"fairlead.dev/maintenance": nil}
	if g.maintenance {
		annotations["fairlead.dev/maintenance"] = "a soak"
	}
	spec := map[string]any{
		"service": map[string]any{"name": g.services[g.current].name}, "caBundle": pki.Bundle(g.bundle...), "groupPriorityMinimum": g.priority,
	}
	w.mu.Unlock()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": spec})
	if err != nil {
		return err
	}
	return w.api(ctx, func(ctx context.Context, k clients) error {
		_, err := k.groups.ApiregistrationV1().APIServices().Patch(ctx, g.apiService(), types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (w *world) deleteAPIService(ctx context.Context, g *group) error {
	return w.api(ctx, func(ctx context.Context, k clients) error {
		err := k.groups.ApiregistrationV1().APIServices().Delete(ctx, g.apiService(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) { // an earlier attempt has deleted it
			return nil
		}
		return err
	})
}

func (w *world) patchEndpoints(ctx context.Context, g *group) error {
	w.mu.Lock()
	s := g.services[g.current]
	patch, err := json.Marshal(map[string][]discoveryv1.Endpoint{"endpoints": endpoints(s.sites)})
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.api(ctx, func(ctx context.Context, k clients) error {
		_, err := k.core.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// rotate moves a group to a new CA step by step: trusted with the old one, then used, then trusted
// alone.
func (w *world) rotate(ctx context.Context, g *group) error {
	w.mu.Lock()
	g.rotations++
	fresh := pki.NewCA(fmt.Sprintf("%s-ca-%d", g.name, g.rotations))
	w.mu.Unlock()
	if err := w.change(ctx, g, func() { g.bundle = []*pki.CA{g.ca, fresh} }, w.patchAPIService); err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, x := range g.sites() {
		x.present(fresh)
	}
	return w.change(ctx, g, func() { g.ca, g.bundle = fresh, []*pki.CA{fresh} }, w.patchAPIService)
}
