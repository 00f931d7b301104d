package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/behind"
)

// errNoAPIServices ends Run if the local apiserver has no aggregation API: waiting would hide a wrong setting.
var errNoAPIServices = errors.New("the local apiserver does not serve apiregistration.k8s.io/v1: " +
	"run kube-apiserver with its aggregator, or register APIServices elsewhere alone: --registry=dir:PATH or etcd:URL")

func everything(from cache.Getter, resource string) *cache.ListWatch {
	return cache.NewListWatchFromClient(from, resource, metav1.NamespaceAll, fields.Everything())
}

// lister returns what reads a kind into to.
func (c *cluster) lister(to *changes, what kind, example runtime.Object, from cache.Getter, resource string) *lister {
	return &lister{
		example: example, from: everything(from, resource), of: c,
		set:     func(name types.NamespacedName, o runtime.Object) { to.set(key{what, name}, o) },
		replace: func(all map[types.NamespacedName]runtime.Object) { to.replace(what, all) },
	}
}

func (c *cluster) apiServiceLister(to *changes, what kind) *lister {
	return c.lister(to, what, &apiregistrationv1.APIService{}, c.apiServices.RESTClient(), "apiservices")
}

// watch is sources.watch. It calls denied if reading the ConfigMap is forbidden and never succeeded.
func (c *cluster) watch(ctx context.Context, ref types.NamespacedName, f func(*corev1.ConfigMap), denied func()) error {
	l := c.one(&corev1.ConfigMap{}, c.api.CoreV1().RESTClient(), "configmaps", ref, func(o runtime.Object) {
		cm, _ := o.(*corev1.ConfigMap)
		f(cm)
	})
	l.denied = denied
	l.reflect(ctx)
	return ctx.Err()
}

// one returns what follows one object, and delivers nil while it does not exist.
func (c *cluster) one(example runtime.Object, from cache.Getter, resource string, ref types.NamespacedName,
	deliver func(runtime.Object)) *lister {
	named := fields.OneTermEqualSelector(metav1.ObjectNameField, ref.Name)
	return &lister{
		example: example, of: c, from: cache.NewListWatchFromClient(from, resource, ref.Namespace, named),
		// The server may ignore the field selector, so the name is checked again.
		set: func(name types.NamespacedName, o runtime.Object) {
			if name == ref {
				deliver(o)
			}
		},
		replace: func(all map[types.NamespacedName]runtime.Object) { deliver(all[ref]) },
	}
}

// lister passes on what it lists and watches of a kind. To its reflector it is a ReflectorStore and TransformingStore.
type lister struct {
	example runtime.Object
	from    *cache.ListWatch
	of      *cluster // is told whether it can be read, and says for denied whether its apiserver is ready
	// set is called with the new state of an object, nil if it was deleted.
	set func(types.NamespacedName, runtime.Object)
	// replace is called with each complete list. Of APIServices sources.run sets it.
	replace func(map[types.NamespacedName]runtime.Object)

	adapt  func(runtime.Object) // modifies an object before it is recorded. Nil means that it stays
	absent func()               // called if the kind is not served and never was. Nil: this is an ordinary fault
	denied func()               // called if reading the kind is forbidden and never succeeded. Nil: as for absent

	// torn says that many changes may share one revision, of one transaction of etcd (`etcdctl del --prefix`). A watch
	// that ends early may have delivered only some, and the next would begin after it, so the kind is relisted.
	torn  bool
	until time.Time // when the last watch ends regularly; only the reflector's goroutine uses it
	// streams says that a list is being streamed, or was last. Only the reflector uses it, on one goroutine at once.
	streams bool

	// Only note uses the following. It is not called twice at once.
	served      bool
	ready, told bool // the apiserver was ready, and denied was called
}

// reflect passes on every state until ctx ends, and nothing while the apiserver is away.
func (l *lister) reflect(ctx context.Context) {
	defer l.of.unread.Delete(l) // nobody needs it any more
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l.streams = false
			list, err := l.from.ListWithContext(ctx, o)
			l.note(ctx, err, false)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			now, until := time.Now(), l.until
			if l.until = (time.Time{}); l.torn && o.SendInitialEvents == nil && now.Before(until) {
				return nil, apierrors.NewResourceExpired("the watch was cut short")
			}
			streams := o.SendInitialEvents != nil
			if streams && l.streams { // the reflector begins anew, without an error or a pause
				l.note(ctx, errors.New("a streamed list was cut short"), true)
			}
			w, err := l.from.WatchWithContext(ctx, o)
			if err == nil && o.TimeoutSeconds != nil {
				l.until = now.Add(time.Duration(*o.TimeoutSeconds) * time.Second)
			}
			l.streams = streams && err == nil
			// After a refusal to stream the list, as by a server without WatchList, the reflector lists: that counts.
			// One that is streamed has succeeded at its end only, see Replace: large answers may be lost on the way.
			if !streams || !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				l.note(ctx, err, !streams)
			}
			return w, err
		},
	}
	// Below client-go's 30 s: the table is outdated meanwhile.
	again := &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 3 * time.Second}
	r := cache.NewReflectorWithOptions(lw, l.example, l, cache.ReflectorOptions{Name: "registry", Backoff: again})
	r.RunWithContext(ctx)
}

func (l *lister) note(ctx context.Context, err error, watches bool) {
	if ctx.Err() != nil {
		return
	}
	known := l.served
	l.served = known || err == nil // from now on a 404 means that the apiserver is starting
	switch {
	case apierrors.IsNotFound(err) && !known && l.absent != nil:
		l.absent()
	case apierrors.IsForbidden(err) && !known && l.denied != nil && !l.ready: // or it has just started, and forbids all
		l.ready = !apierrors.IsInternalError(l.of.api.Discovery().RESTClient().Get().AbsPath("/readyz").
			Timeout(5 * time.Second).Do(ctx).Error())
	case apierrors.IsForbidden(err) && !known && l.denied != nil && !l.told:
		l.told = true
		l.denied()
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || err == nil && watches:
		l.of.unread.Delete(l) // rights that are missing show elsewhere, and a list ends no outage of watches
	case err != nil:
		_, kind, _ := strings.Cut(fmt.Sprintf("%T", l.example), ".")
		cause := cmp.Or(errors.Unwrap(err), err).Error() // without the URL: each of a watch has another timeout
		l.of.unread.Store(l, errors.New(kind+": "+printable.Cause(cause)))
		if ctx.Err() != nil { // reflect may have returned meanwhile
			l.of.unread.Delete(l)
		}
	}
}

func (l *lister) Add(o any) error    { return l.put(o, false) }
func (l *lister) Update(o any) error { return l.put(o, false) }
func (l *lister) Delete(o any) error { return l.put(o, true) }
func (l *lister) Resync() error      { return nil }

func (l *lister) put(o any, deleted bool) error {
	object, name, err := l.named(o)
	if deleted {
		object = nil
	}
	if err == nil {
		l.set(name, object)
	}
	return err
}

func (l *lister) Replace(list []any, _ string) error {
	all := make(map[types.NamespacedName]runtime.Object, len(list))
	for _, o := range list {
		object, name, err := l.named(o)
		if err != nil {
			return err
		}
		all[name] = object
	}
	if l.replace(all); l.streams { // its watch goes on
		l.streams = false
		l.of.unread.Delete(l)
	}
	return nil
}

// Transformer strips objects early: the reflector must not hold a list with all managed fields.
func (l *lister) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		object, _, err := l.named(o)
		return object, err
	}
}

func (l *lister) named(o any) (runtime.Object, types.NamespacedName, error) {
	object, ok := o.(interface {
		runtime.Object
		metav1.Object
	})
	if !ok {
		return nil, types.NamespacedName{}, fmt.Errorf("reading from the local apiserver: unexpected %T", o)
	}
	if strip(object); l.adapt != nil {
		l.adapt(object)
	}
	return object, types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}, nil
}

// strip drops fields that are not used here, so that ten thousand Services fit into a few
// megabytes. The reflector passes objects that nothing else refers to, so they may be modified.
func strip(o runtime.Object) {
	switch o := o.(type) {
	case *apiregistrationv1.APIService:
		// The verdict is this replica's own, and kube-aggregator's must not be mistaken for it:
		// that of an APIService which it sends here is Entry.FrontSays.
		o.ManagedFields = nil
		if url := o.Annotations[urlAnnotation]; url == "" && !misnamed(o) && behind.Server(o) == o.Spec.Service {
			o.Status = apiregistrationv1.APIServiceStatus{}
		}
	case *corev1.Service:
		m := &o.ObjectMeta
		*m = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
		o.Spec.Selector, o.Status = nil, corev1.ServiceStatus{}
	case *discoveryv1.EndpointSlice:
		o.ObjectMeta = metav1.ObjectMeta{
			Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
			Labels: map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]},
		}
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			*e = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, Hints: e.Hints}
		}
	}
}
