package registry

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// sources are what feeds a registry with objects: a local apiserver, a directory, etcd, or several.
type sources struct {
	*directory.Directory

	cluster     *cluster             // reads the local apiserver. Nil means that there is none
	local       *directory.Local     // has its group-versions as APIServices. Nil means that those of cluster count
	stored      *cluster             // reads the APIServices in etcd, or is cluster. Nil: the directory has them
	files       bool                 // there is a directory
	withCluster bool                 // the cluster's APIServices and Services count if the directory lacks their names
	remembered  *remembered          // the file with the last known APIServices of etcd
	front       types.NamespacedName // as in Options
}

func newSources(c Config) (m *sources, err error) {
	m = &sources{
		files: c.Directory != "", withCluster: c.Cluster && c.Directory != "",
		remembered: &remembered{path: c.CacheFile, log: c.Logger}, front: c.Options.Front,
	}
	if c.Client != nil {
		m.cluster, err = newCluster(c.Client)
	}
	switch {
	case err != nil:
	case c.APIServices != nil:
		m.stored, err = newCluster(c.APIServices)
	case !m.files:
		m.stored = m.cluster
	}
	if err == nil && c.Client != nil && !c.Cluster && m.stored != m.cluster {
		m.local, err = directory.NewLocal(c.Client, c.Logger)
	}
	if err == nil {
		m.Directory, err = directory.New(directory.Config{Path: c.Directory, Logger: c.Logger})
	}
	return m, err
}

// run reads all until ctx ends or a source proves unusable. One only unreachable keeps trying.
func (m *sources) run(ctx context.Context, to *changes) error {
	as, lists := kindAPIService, m.serviceListers(to)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	absent := func() { cancel(errNoAPIServices) }
	g, ctx := errgroup.WithContext(ctx)
	if m.stored != nil {
		stored := m.stored.apiServiceLister(to, kindAPIService)
		stored.torn, stored.absent = m.stored != m.cluster, absent
		stored.replace = func(all map[types.NamespacedName]runtime.Object) { m.remembered.seen(to, all) }
		as, lists = kindFallback, append(lists, stored)
		if m.remembered.path != "" {
			g.Go(func() error { m.remembered.recall(ctx, to); return ctx.Err() })
		}
	}
	switch {
	case m.local != nil:
		g.Go(func() error {
			return m.local.Run(ctx, func(all map[types.NamespacedName]runtime.Object) { to.replace(kindServed, all) })
		})
	case m.cluster != m.stored && m.cluster != nil:
		served := m.cluster.apiServiceLister(to, kindServed)
		served.adapt, served.absent = m.asLocal, absent
		lists = append(lists, served)
	}
	for _, l := range lists {
		g.Go(func() error { l.reflect(ctx); return ctx.Err() })
	}
	if m.files || m.cluster == nil {
		take := func(objects []directory.Object, faults []directory.Fault) { to.replaceAll(as, objects, faults) }
		g.Go(func() error { return m.Run(ctx, take) })
	}
	_ = g.Wait()
	return context.Cause(ctx)
}

// serviceListers returns listers of the local apiserver's Services, nil if they do not count.
func (m *sources) serviceListers(to *changes) []*lister {
	if m.cluster == nil || m.files && !m.withCluster {
		return nil
	}
	c, services, slices := m.cluster, kindService, kindSlice
	if m.withCluster {
		services, slices = kindFallbackService, kindFallbackSlice
	}
	lists := []*lister{
		c.lister(to, services, &corev1.Service{}, c.api.CoreV1().RESTClient(), "services"),
		c.lister(to, slices, &discoveryv1.EndpointSlice{}, c.api.DiscoveryV1().RESTClient(), "endpointslices"),
	}
	for _, l := range lists {
		if m.withCluster {
			l.denied = func() { l.replace(nil) }
		}
	}
	return lists
}

// watch watches one ConfigMap until ctx ends: that of the directory or, if that has none, of the cluster. It calls f
// from one goroutine, with nil if there is none, and denied if only the local apiserver has it, and forbids to read it.
func (m *sources) watch(ctx context.Context, ref types.NamespacedName, f func(*corev1.ConfigMap), denied func()) error {
	clients := types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"}
	if m.cluster != nil && (!m.files || ref == clients) {
		// Only the local apiserver can say which CAs its extension servers should trust.
		return m.cluster.watch(ctx, ref, f, denied)
	}
	if !m.withCluster {
		return m.Watch(ctx, ref.Namespace, ref.Name, f)
	}
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
	g.Go(func() error { return m.Watch(ctx, ref.Namespace, ref.Name, deliver(0)) })
	g.Go(func() error { return m.cluster.watch(ctx, ref, deliver(1), func() { deliver(1)(nil) }) })
	return g.Wait()
}

// Roles is Directory.Roles. Without a directory there are none.
func (r *Registry) Roles() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
	return r.sources.Roles()
}

// asLocal makes an extension server's APIService Local: the local apiserver's own aggregator knows its availability.
// One that this aggregator sends to Fairlead stays as it is: there it would only come back.
func (m *sources) asLocal(o runtime.Object) {
	a, ok := o.(*apiregistrationv1.APIService)
	if !ok {
		return
	}
	a.ResourceVersion = "" // it would not fit the lists of this process
	if ref := a.Spec.Service; ref != nil && nameOf(ref) == m.front {
		delete(a.Annotations, urlAnnotation) // files may choose where this process connects, not the cluster
		return
	}
	// The annotations apply only where requests are forwarded to the extension server.
	maps.DeleteFunc(a.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, prefix) })
	a.Spec.Service, a.Spec.CABundle, a.Spec.InsecureSkipTLSVerify = nil, nil, false
}

// Aggregated reports whether the local apiserver's own aggregator has it from an extension server, see asLocal.
func (e *Entry) Aggregated() bool { return e.Local() && e.Object.Labels[directory.Automanaged] == "" }
