package directory

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// shown is one immutable state of the objects that are not in the table.
type shown struct {
	maps map[types.NamespacedName]*corev1.ConfigMap
	// roles by name, bindings in order of file.
	roles    map[string]*rbacv1.ClusterRole
	bindings []*rbacv1.ClusterRoleBinding
	// generation changes whenever the roles or bindings do.
	generation uint64
	// read reports whether the directory has been read.
	read bool
	// superseded is closed once a newer state is stored.
	superseded chan struct{}
}

// Superseded implements the state of latest.Of.
func (s *shown) Superseded() <-chan struct{} { return s.superseded }

func newShown() *shown {
	return &shown{
		maps: make(map[types.NamespacedName]*corev1.ConfigMap), roles: make(map[string]*rbacv1.ClusterRole), superseded: make(chan struct{}),
	}
}

// show stores a new state.
func (d *Directory) show(now *shown) {
	now.read = true
	old := d.shown.Load()
	if now.generation = old.generation; !old.read || !maps.Equal(old.roles, now.roles) || !slices.Equal(old.bindings, now.bindings) {
		now.generation++
	}
	d.shown.Store(now)
	close(old.superseded) // after the store: readers that wake up must find the new state
}

// Roles returns the ClusterRoles by name and the ClusterRoleBindings, and a number that changes
// whenever they do. They are read-only.
func (d *Directory) Roles() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
	now := d.shown.Load()
	return now.roles, now.bindings, now.generation
}

// take keeps an object that is not for the table. It reports false for one that is.
func (s *shown) take(o runtime.Object) bool {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		s.maps[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o
	case *rbacv1.ClusterRole:
		s.roles[o.Name] = o
	case *rbacv1.ClusterRoleBinding:
		s.bindings = append(s.bindings, o)
	case *corev1.Secret: // allowed in manifests, but unused here
	default:
		return false
	}
	return true
}

// Watch watches one ConfigMap until ctx ends. It calls f from one goroutine, with nil if the
// ConfigMap does not exist.
func (d *Directory) Watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	var last *corev1.ConfigMap
	notified := false
	for state := range latest.Of(ctx, d.shown.Load, nil) {
		now := state.maps[types.NamespacedName{Namespace: namespace, Name: name}]
		if state.read && (!notified || now != last) {
			f(now)
			last, notified = now, true
		}
	}
	return ctx.Err()
}
