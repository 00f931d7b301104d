package registry

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// follow sends the APIServices, ordered by name, whenever they change, until ctx ends. Those of
// extension servers are turned into Local ones: requests go to the local apiserver's own
// aggregator, which knows their availability.
func (c *cluster) follow(ctx context.Context, to chan<- []*apiregistrationv1.APIService) {
	all := make(map[types.NamespacedName]*apiregistrationv1.APIService)
	put := func(name types.NamespacedName, o runtime.Object) (changed bool) {
		old := all[name]
		a, ok := o.(*apiregistrationv1.APIService)
		if !ok {
			delete(all, name)
			return old != nil
		}
		// The annotations apply only where requests are forwarded to the extension server.
		maps.DeleteFunc(a.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, prefix) })
		a.Spec.Service, a.Spec.CABundle, a.Spec.InsecureSkipTLSVerify = nil, nil, false
		a.ResourceVersion = "" // it would not fit the lists of this process
		if old == nil || !sameObject(old, a) {
			all[name] = a
		}
		return all[name] == a
	}
	send := func() {
		byName := func(a, b *apiregistrationv1.APIService) int { return strings.Compare(a.Name, b.Name) }
		select {
		case to <- slices.SortedFunc(maps.Values(all), byName):
		case <-ctx.Done():
		}
	}
	c.apiServiceLister().reflect(ctx, &store{
		set: func(name types.NamespacedName, o runtime.Object) {
			if put(name, o) {
				send()
			}
		},
		replace: func(list map[types.NamespacedName]runtime.Object) {
			maps.DeleteFunc(all, func(name types.NamespacedName, _ *apiregistrationv1.APIService) bool { return list[name] == nil })
			for name, o := range list {
				put(name, o)
			}
			send()
		},
	})
}

// watchBoth watches a ConfigMap of the directory or, if the directory does not have it, of the
// cluster.
func (m *manifests) watchBoth(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	var mu sync.Mutex // guards known and found, and serializes calls of f
	var known [2]bool // :: the directory's, the cluster's
	var found [2]*corev1.ConfigMap
	deliver := func(whose int) func(*corev1.ConfigMap) {
		return func(cm *corev1.ConfigMap) {
			mu.Lock()
			defer mu.Unlock()
			if known[whose], found[whose] = true, cm; known[0] && (found[0] != nil || known[1]) {
				f(cmp.Or(found[0], found[1]))
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.Watch(ctx, namespace, name, deliver(0)) })
	g.Go(func() error { return m.cluster.watchOr(ctx, namespace, name, deliver(1), func() { deliver(1)(nil) }) })
	return g.Wait()
}
