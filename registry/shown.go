package registry

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/manifest"
)

// shown is one immutable state of the objects that the table is not made from.
type shown struct {
	maps map[types.NamespacedName]*corev1.ConfigMap
	// roles by name, bindings in order of file.
	roles    map[string]*rbacv1.ClusterRole
	bindings []*rbacv1.ClusterRoleBinding
	// generation is another one whenever the roles or bindings are.
	generation uint64
	// read says that the directory has been read: until then nobody knows what is in it.
	read bool
	// superseded is closed once a newer state is in place.
	superseded chan struct{}
}

func newShown() *shown {
	return &shown{
		maps: make(map[types.NamespacedName]*corev1.ConfigMap), roles: make(map[string]*rbacv1.ClusterRole), superseded: make(chan struct{}),
	}
}

// show puts a state that was read in place.
func (d *directory) show(now *shown) {
	now.read = true
	old := d.shown.Load()
	if now.generation = old.generation; !old.read || !maps.Equal(old.roles, now.roles) || !slices.Equal(old.bindings, now.bindings) {
		now.generation++
	}
	d.shown.Store(now)
	close(old.superseded) // after the store: whoever wakes up must find the new state
}

// Roles returns the ClusterRoles by name and the ClusterRoleBindings of the directory, and a number that is another one whenever either has changed.
// Nothing of it may be changed. Without a directory there are none.
func (r *Registry) Roles() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
	d, ok := r.source.(*directory)
	if !ok {
		return nil, nil, 0
	}
	now := d.shown.Load()
	return now.roles, now.bindings, now.generation
}

// sortIn puts an object where it belongs.
func sortIn(o manifest.Object, all *sets, to *shown) {
	m, err := meta.Accessor(o.Value)
	if err != nil {
		return // every kind of manifest has metadata
	}
	name := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
	switch v := o.Value.(type) {
	case *apiregistrationv1.APIService:
		all[kindAPIService][name] = v
	case *corev1.Service:
		all[kindService][name] = v
	case *discoveryv1.EndpointSlice:
		all[kindSlice][name] = v
	case *corev1.ConfigMap:
		to.maps[name] = v
	case *rbacv1.ClusterRole:
		to.roles[v.Name] = v
	case *rbacv1.ClusterRoleBinding:
		to.bindings = append(to.bindings, v)
	}
}

// watch implements source.
func (d *directory) watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	if d.cluster != nil && namespace == metav1.NamespaceSystem && name == "extension-apiserver-authentication" {
		// It is the local apiserver's word on whom its servers trust, which no file can give.
		return d.cluster.watch(ctx, namespace, name, f)
	}
	var last *corev1.ConfigMap
	told := false
	for {
		state := d.shown.Load()
		now := state.maps[types.NamespacedName{Namespace: namespace, Name: name}]
		if state.read && (!told || now != last) {
			f(now)
			last, told = now, true
		}
		select {
		case <-state.superseded:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
