//go:build e2e

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
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
	switch kind {
	case 0, 1:
		a.fault.Kind, a.fault.Scopes = "registry: APIService retargeted", hurts
		a.begin = func(ctx context.Context) error { return w.retarget(ctx, g) }
	case 2:
		a.fault.Kind, a.fault.Scopes, a.fault.Weak = "registry: APIService deleted", append(hurts, "discovery"), false
		a.fault.Refusals = []int{http.StatusNotFound, http.StatusForbidden} // the local apiserver's; 403 for callers without credentials
		a.begin = func(ctx context.Context) error { return w.remove(ctx, g) }
		a.end = func(ctx context.Context) error { return w.restore(ctx, g) }
	case 3:
		a.fault.Kind = "registry: priority changed"
		a.begin = func(ctx context.Context) error { return w.set(ctx, g, func() { g.priority = int32(500 + number) }) }
	case 4:
		a.fault.Kind = "registry: endpoints removed"
		a.begin = func(ctx context.Context) error { return w.unlist(ctx, g, number) }
		a.end = func(ctx context.Context) error { return w.relist(ctx, g) }
	case 5:
		a.fault.Kind = "registry: CA rotated"
		a.begin = func(ctx context.Context) error { return w.rotate(ctx, g) }
	case 6:
		a.fault.Kind, a.fault.Scopes = "registry: bundle of a stranger", hurts
		a.begin = func(ctx context.Context) error {
			return w.set(ctx, g, func() { g.bundle = []*pki.CA{pki.NewCA("stranger")} })
		}
		a.end = func(ctx context.Context) error { return w.set(ctx, g, func() { g.bundle = []*pki.CA{g.ca} }) }
	case 7:
		a.fault.Kind, a.fault.Scopes, a.fault.Weak = "registry: maintenance", hurts, false
		a.begin = func(ctx context.Context) error { return w.set(ctx, g, func() { g.maintenance = true }) }
		a.end = func(ctx context.Context) error { return w.set(ctx, g, func() { g.maintenance = false }) }
	}
	return a
}

// set changes the model, and then the APIService to match it.
func (w *world) set(ctx context.Context, g *group, change func()) error {
	w.mu.Lock()
	change()
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

// known waits until both doors have read the model of a group: requests that begin later may not
// use anything older.
func (w *world) known(ctx context.Context, g *group) error {
	err := wait.PollUntilContextTimeout(ctx, look, 3*time.Minute, true, func(context.Context) (bool, error) { return w.everywhere(g) == "", nil })
	if err != nil {
		return fmt.Errorf("waiting until %s is known everywhere: %w", g.name, err)
	}
	return nil
}

func (w *world) retarget(ctx context.Context, g *group) error {
	w.mu.Lock()
	from, to := g.services[g.current], g.services[1-g.current]
	w.mu.Unlock()
	w.allow(g, to)
	if err := w.set(ctx, g, func() { g.current = 1 - g.current }); err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	w.forbid(g, from)
	return nil
}

func (w *world) allow(g *group, s *service) {
	for _, x := range s.sites {
		w.checker.allow(g.name, x.name)
	}
}

func (w *world) forbid(g *group, s *service) {
	for _, x := range s.sites {
		w.checker.forbid(g.name, x.name)
	}
}

func (w *world) remove(ctx context.Context, g *group) error {
	w.mu.Lock()
	g.exists = false
	s := g.services[g.current]
	w.mu.Unlock()
	err := w.api(ctx, func(ctx context.Context, k clients) error {
		return absent(k.groups.ApiregistrationV1().APIServices().Delete(ctx, g.apiService(), metav1.DeleteOptions{}))
	})
	if err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	w.forbid(g, s)
	return nil
}

func (w *world) restore(ctx context.Context, g *group) error {
	w.mu.Lock()
	g.exists = true
	s := g.services[g.current]
	w.mu.Unlock()
	w.allow(g, s)
	return w.createAPIService(ctx, g)
}

// unlist removes one or two of the three endpoints.
func (w *world) unlist(ctx context.Context, g *group, number int) error {
	w.mu.Lock()
	s := g.services[g.current]
	first := number % len(s.sites)
	gone := []*site{s.sites[first]}
	if number%2 == 0 {
		gone = append(gone, s.sites[(first+1)%len(s.sites)])
	}
	for _, x := range gone {
		x.listed = false
	}
	w.mu.Unlock()
	if err := w.patchEndpoints(ctx, s); err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, x := range gone {
		w.checker.forbid(g.name, x.name)
	}
	return nil
}

func (w *world) relist(ctx context.Context, g *group) error {
	w.mu.Lock()
	s := g.services[g.current]
	for _, x := range s.sites {
		x.listed = true
	}
	w.mu.Unlock()
	w.allow(g, s)
	return w.patchEndpoints(ctx, s)
}

func (w *world) patchEndpoints(ctx context.Context, s *service) error {
	w.mu.Lock()
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
	if err := w.set(ctx, g, func() { g.bundle = []*pki.CA{g.ca, fresh} }); err != nil {
		return err
	}
	if err := w.known(ctx, g); err != nil {
		return err
	}
	for _, x := range g.sites() {
		x.present(fresh)
	}
	return w.set(ctx, g, func() { g.ca, g.bundle = fresh, []*pki.CA{fresh} })
}
