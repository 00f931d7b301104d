package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// manifests is the source that follows a directory, perhaps in front of a local apiserver.
type manifests struct {
	*directory.Directory
	// cluster is the local apiserver's. Nil: there is none.
	cluster *cluster
}

func newManifests(c Config) (m *manifests, err error) {
	m = &manifests{}
	m.Directory, err = directory.New(directory.Config{Path: c.Directory, Client: c.Client, Claimant: claimant, Logger: c.Logger})
	if err == nil && c.Client != nil {
		m.cluster, err = newCluster(c.Client, c.Logger)
	}
	return m, err
}

// run implements source.
func (m *manifests) run(ctx context.Context, to *changes) error { return m.Run(ctx, to.replaceAll) }

// watch implements source.
func (m *manifests) watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	if m.cluster != nil && namespace == metav1.NamespaceSystem && name == "extension-apiserver-authentication" {
		// It is the local apiserver's word on whom its servers trust, which no file can give.
		return m.cluster.watch(ctx, namespace, name, f)
	}
	return m.Watch(ctx, namespace, name, f)
}

// Roles returns the ClusterRoles by name and the ClusterRoleBindings of the directory, and a number
// that is another one whenever either has changed. Nothing of it may be changed. Without a
// directory there are none.
func (r *Registry) Roles() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
	m, ok := r.source.(*manifests)
	if !ok {
		return nil, nil, 0
	}
	return m.Roles()
}
