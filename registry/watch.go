package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// errNoAPIServices is what a local apiserver without the aggregation API earns: it will never have one, so waiting would hide a wrong setting.
var errNoAPIServices = errors.New("the local apiserver does not serve apiregistration.k8s.io/v1: " +
	"run kube-apiserver with its aggregator, or register APIServices from files with --registry=dir:PATH")

func (c *cluster) run(ctx context.Context, to *changes) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	everything := func(from cache.Getter, resource string) *cache.ListWatch {
		return cache.NewListWatchFromClient(from, resource, metav1.NamespaceAll, fields.Everything())
	}
	lists := []*lister{
		{
			kind: kindAPIService, example: &apiregistrationv1.APIService{}, from: everything(c.apiServices.RESTClient(), "apiservices"),
			absent: func() { cancel(errNoAPIServices) },
		},
		{kind: kindService, example: &corev1.Service{}, from: everything(c.core.RESTClient(), "services")},
		{kind: kindSlice, example: &discoveryv1.EndpointSlice{}, from: everything(c.discovery.RESTClient(), "endpointslices")},
	}
	var wg sync.WaitGroup
	for _, l := range lists {
		l.log = c.log
		wg.Go(func() {
			l.reflect(ctx, &store{
				set:     func(name types.NamespacedName, o runtime.Object) { to.set(key{l.kind, name}, o) },
				replace: func(all map[types.NamespacedName]runtime.Object) { to.replace(l.kind, all) },
			})
		})
	}
	wg.Wait() // every reflector ends with ctx
	return context.Cause(ctx)
}

// watch implements source.
func (c *cluster) watch(ctx context.Context, namespace, name string, f func(*corev1.ConfigMap)) error {
	l := &lister{
		example: &corev1.ConfigMap{}, log: c.log,
		from: cache.NewListWatchFromClient(c.core.RESTClient(), "configmaps", namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, name)),
	}
	tell := func(o runtime.Object) {
		cm, _ := o.(*corev1.ConfigMap)
		f(cm)
	}
	wanted := types.NamespacedName{Namespace: namespace, Name: name}
	// The field selector is the server's to honour; what comes from elsewhere is not trusted to have done so.
	l.reflect(ctx, &store{
		set: func(name types.NamespacedName, o runtime.Object) {
			if name == wanted {
				tell(o)
			}
		},
		replace: func(all map[types.NamespacedName]runtime.Object) { tell(all[wanted]) },
	})
	return ctx.Err()
}

// lister is how one kind is read.
type lister struct {
	kind    kind
	example runtime.Object
	from    *cache.ListWatch
	log     *slog.Logger
	// absent is called when the kind is not served and has never been. Nil: that is a fault like any other.
	absent func()

	mu     sync.Mutex // guards what follows
	served bool
	last   string // the error that was logged last, so that one outage is one line
}

// again is how long a reflector waits after a fault: less than client-go's 30 s at most, because while it waits the table is old.
func again() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 3 * time.Second}
}

// reflect keeps a store up to date until ctx ends. When the apiserver goes away the store keeps what it has.
func (l *lister) reflect(ctx context.Context, to cache.ReflectorStore) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := l.from.ListWithContext(ctx, o)
			l.note(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := l.from.WatchWithContext(ctx, o)
			l.note(ctx, err)
			return w, err
		},
	}
	r := cache.NewReflectorWithOptions(lw, l.example, to, cache.ReflectorOptions{Name: "registry", Backoff: again()})
	r.RunWithContext(ctx)
}

// note looks at how a request to the apiserver ended.
func (l *lister) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	text, known := "", l.served
	if err != nil {
		text = err.Error()
	}
	news := text != l.last
	l.last = text
	l.served = known || err == nil // from now on a 404 is an apiserver that is just starting
	l.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err) && !known && l.absent != nil:
		l.absent()
	case err != nil && news:
		l.log.Warn("reading from the local apiserver, the last state is kept", "kind", fmt.Sprintf("%T", l.example), "err", err)
	}
}

// store hands on what a reflector sees, which is its only caller. It implements cache.ReflectorStore and cache.TransformingStore.
type store struct {
	// set takes the new state of an object, nil when it was deleted.
	set func(types.NamespacedName, runtime.Object)
	// replace takes the complete set of objects.
	replace func(map[types.NamespacedName]runtime.Object)
}

func (s *store) Add(o any) error    { return s.put(o) }
func (s *store) Update(o any) error { return s.put(o) }
func (s *store) Resync() error      { return nil }

func (s *store) put(o any) error {
	object, name, err := named(o)
	if err != nil {
		return err
	}
	s.set(name, object)
	return nil
}

func (s *store) Delete(o any) error {
	_, name, err := named(o)
	if err != nil {
		return err
	}
	s.set(name, nil)
	return nil
}

func (s *store) Replace(list []any, _ string) error {
	all := make(map[types.NamespacedName]runtime.Object, len(list))
	for _, o := range list {
		object, name, err := named(o)
		if err != nil {
			return err
		}
		all[name] = object
	}
	s.replace(all)
	return nil
}

// Transformer spares the reflector from holding a list with all its managed fields.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		object, _, err := named(o)
		return object, err
	}
}

// named strips an object and tells its name.
func named(o any) (runtime.Object, types.NamespacedName, error) {
	object, ok := o.(runtime.Object)
	if !ok {
		return nil, types.NamespacedName{}, fmt.Errorf("reading from the local apiserver: unexpected %T", o)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, types.NamespacedName{}, fmt.Errorf("reading from the local apiserver: %w", err)
	}
	strip(object)
	return object, types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}

// strip drops what nobody here reads, so that ten thousand Services fit into a few megabytes. The reflector hands over objects that nobody else
// has yet, so they may be changed.
func strip(o runtime.Object) {
	switch o := o.(type) {
	case *apiregistrationv1.APIService:
		// The verdict here is this replica's own: kube-aggregator's must not be taken for it.
		o.ManagedFields, o.Status = nil, apiregistrationv1.APIServiceStatus{}
	case *corev1.Service:
		o.ObjectMeta = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
		o.Spec.Selector, o.Status = nil, corev1.ServiceStatus{}
	case *discoveryv1.EndpointSlice:
		o.ObjectMeta = metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
			Labels: map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]},
		}
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			*e = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions}
		}
	}
}
