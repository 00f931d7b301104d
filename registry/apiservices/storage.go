package apiservices

import (
	"context"
	"fmt"
	"path"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// readOnly returns the storages of the table, with the interfaces for reads only.
func (s *store) readOnly(scheme *runtime.Scheme) map[string]rest.Storage {
	all, _ := etcd.Over(scheme, s)
	s.rest = all
	feature.DefaultFeatureSupportChecker.CheckClient(context.Background(), table{}, storage.RequestWatchProgress)
	return map[string]rest.Storage{
		"apiservices": struct {
			rest.Storage
			rest.Getter
			rest.Lister
			rest.Watcher
			rest.Scoper
			rest.SingularNameProvider
			rest.CategoriesProvider
		}{all, all, all, all, all, all, all},
		"apiservices/status": struct {
			rest.Storage
			rest.Getter
			rest.TableConvertor
		}{all, all, all},
	}
}

// table poses as a client of etcd, which k8s.io/apiserver asks whether watch-list is supported: its
// watch cache supports it if etcd's version can report its progress. A table is always up to date.
type table struct{}

func (table) Endpoints() []string { return []string{"table"} }

func (table) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return &clientv3.StatusResponse{Version: "3.6.0"}, nil
}

// known checks a request's resourceVersion. For one from the future, another process's, the error makes clients relist.
func (s *store) known(_ context.Context, text string) error {
	revision, err := s.Versioner().ParseResourceVersion(text)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", text))
	}
	if now := s.current.Load().revision; revision > now {
		// Without Retry-After, for which client-go retries ten times: this replica never gets another one's revision.
		return storage.NewTooLargeResourceVersionError(revision, now, 0)
	}
	return nil
}

func (s *store) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

// IsWatchListSemanticsUnSupported makes the cache list.
func (s *store) IsWatchListSemanticsUnSupported() bool { return true }

func (s *store) Get(_ context.Context, key string, _ storage.GetOptions, into runtime.Object) error {
	objects := s.current.Load().objects
	at, found := slices.BinarySearchFunc(objects, path.Base(key), compareName)
	if !found {
		return storage.NewKeyNotFoundError(key, 0)
	}
	objects[at].DeepCopyInto(into.(*apiregistration.APIService)) //nolint:forcetypeassert // always this type
	return nil
}

// GetList implements storage.Interface. It waits for the first table.
func (s *store) GetList(ctx context.Context, key string, o storage.ListOptions, into runtime.Object) error {
	state := s.current.Load()
	for ; !state.read; state = s.current.Load() {
		select {
		case <-state.superseded:
		case <-s.ended:
			return unread()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	now := fmt.Sprint(state.revision)
	if o.Predicate.Continue != "" ||
		o.ResourceVersionMatch == metav1.ResourceVersionMatchExact && o.ResourceVersion != now {
		return apierrors.NewResourceExpired("the resource version is too old, or the list has changed; current: " + now)
	}
	list := into.(*apiregistration.APIServiceList) //nolint:forcetypeassert // as above
	list.Items = make([]apiregistration.APIService, 0, len(state.objects))
	for _, object := range state.objects {
		// The cache lists everything, but may pass on a request authorized for one object only.
		matches, err := o.Predicate.Matches(object)
		if err != nil {
			return err
		}
		if matches && (o.Recursive || object.Name == path.Base(key)) {
			list.Items = append(list.Items, *object)
		}
	}
	return s.Versioner().UpdateList(list, state.revision, "", nil)
}

func (s *store) Watch(ctx context.Context, _ string, o storage.ListOptions) (watch.Interface, error) {
	at, err := s.Versioner().ParseResourceVersion(o.ResourceVersion)
	if err != nil {
		return nil, err
	}
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	send := func(e watch.Event) bool {
		select {
		case events <- e:
			return true
		case <-w.StopChan():
		case <-ctx.Done():
		}
		return false
	}
	go func() { // ends with the watch
		defer close(events)
		for {
			state := s.current.Load()
			if at < state.floor {
				expired := apierrors.NewResourceExpired("too old resource version")
				send(watch.Event{Type: watch.Error, Object: &expired.ErrStatus})
				return
			}
			for _, e := range state.events[min(at, state.revision)-state.floor:] {
				if !send(e) {
					return
				}
			}
			at = state.revision
			select {
			case <-state.superseded:
			case <-w.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return w, nil
}

func (s *store) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return s.current.Load().revision, nil
}

func (s *store) Stats(context.Context) (storage.Stats, error) {
	return storage.Stats{ObjectCount: int64(len(s.current.Load().objects))}, nil
}

// These do nothing. Writes are not implemented: no handlers for them are installed.

func (s *store) RequestWatchProgress(context.Context) error          { return nil }
func (s *store) ReadinessCheck() error                               { return nil }
func (s *store) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
func (s *store) CompactRevision() int64                              { return 0 }
