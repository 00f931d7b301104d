package etcd

import (
	"context"
	"path"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	restetcd "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
)

// resourcePrefix follows --etcd-prefix in every key.
const resourcePrefix = "/" + apiregistration.GroupName + "/apiservices"

func one() runtime.Object { return &apiregistration.APIService{} }

// codec returns kube-apiserver's codec for this group (kubernetes pkg/controlplane/apiserver/aggregator.go): it writes
// v1 as JSON, independently of --storage-media-type, and also reads protobuf.
func codec(scheme *runtime.Scheme) runtime.Codec {
	codecs := serializer.NewCodecFactory(scheme)
	return codecs.LegacyCodec(apiregistrationv1.SchemeGroupVersion, v1beta1.SchemeGroupVersion)
}

func (s *Store) open(scheme *runtime.Scheme, prefix string) (*bounded, func(), error) {
	versioner, codec, plain := storage.APIObjectVersioner{}, codec(scheme), identity.NewEncryptCheckTransformer()
	list := func() runtime.Object { return &apiregistration.APIServiceList{} }
	compactor := etcd3.StartCompactorPerEndpoint(s.client.Client, storagebackend.DefaultCompactInterval)
	raw, err := etcd3.New(s.client, compactor, codec, one, list, prefix, resourcePrefix,
		apiregistration.Resource("apiservices"), &vetting{plain, codec, path.Join("/", prefix, resourcePrefix) + "/"},
		etcd3.NewDefaultLeaseManagerConfig(), etcd3.NewDefaultDecoder(codec, versioner), versioner)
	if err != nil {
		compactor.Stop()
		return nil, nil, err
	}
	b := &bounded{Interface: raw}
	b.watches.Store(newWatches())
	return b, func() {
		compactor.Stop()
		raw.Close()
	}, nil
}

// URLAnnotation names a backend by its URLs. Its Service is then not looked up.
const URLAnnotation = "fairlead.dev/url"

// REST is kube-aggregator's storage, which also prints URLs.
type REST struct{ *restetcd.REST }

// ConvertToTable implements rest.TableConvertor. A URL is shown instead of the Service.
func (r REST) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	t, err := r.REST.ConvertToTable(ctx, o, options)
	if err != nil {
		return nil, err
	}
	for _, row := range t.Rows {
		if m, err := meta.Accessor(row.Object.Object); err == nil && m.GetAnnotations()[URLAnnotation] != "" {
			row.Cells[1] = m.GetAnnotations()[URLAnnotation]
		}
	}
	return t, nil
}

// creation is kube-aggregator's strategy, but what has URLs instead of a Service is not Local: not available at once.
type creation struct{ rest.RESTCreateStrategy }

func (c creation) PrepareForCreate(ctx context.Context, o runtime.Object) {
	c.RESTCreateStrategy.PrepareForCreate(ctx, o)
	a := o.(*apiregistration.APIService) //nolint:forcetypeassert // always this type
	if _, byURL := a.Annotations[URLAnnotation]; byURL {
		a.Status = apiregistration.APIServiceStatus{}
	}
}

// Over makes kube-aggregator's REST storage on top of raw, with k8s.io/apiserver's watch cache in between.
func Over(scheme *runtime.Scheme, raw storage.Interface) (r REST, cached *cacher.Cacher) {
	config := storagebackend.Config{
		Codec: codec(scheme), EventsHistoryWindow: storagebackend.DefaultEventsHistoryWindow,
		EncodeVersioner: runtime.NewMultiGroupVersioner(apiregistrationv1.SchemeGroupVersion,
			schema.GroupKind{Group: v1beta1.GroupName}),
	}
	r.REST = restetcd.NewREST(scheme, generic.RESTOptions{
		StorageConfig:           config.ForResource(apiregistration.Resource("apiservices")),
		ResourcePrefix:          resourcePrefix,
		DeleteCollectionWorkers: 1,
		// No garbage collection: its finalizers would wait for a controller that may not exist.
		Decorator: func(
			c *storagebackend.ConfigForResource, prefix string,
			key func(runtime.Object) (string, error), one, list func() runtime.Object,
			attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
		) (_ storage.Interface, _ factory.DestroyFunc, err error) {
			cached, err = cacher.NewCacherFromConfig(cacher.Config{
				Storage:             raw,
				Versioner:           raw.Versioner(),
				GroupResource:       c.GroupResource,
				EventsHistoryWindow: c.EventsHistoryWindow,
				ResourcePrefix:      prefix,
				KeyFunc:             key,
				NewFunc:             one,
				NewListFunc:         list,
				GetAttrsFunc:        attributes,
				IndexerFuncs:        triggers,
				Indexers:            indexers,
				Codec:               c.Codec,
			})
			if err != nil {
				return nil, nil, err
			}
			all := cacher.NewCacheDelegator(cached, raw)
			return all, func() {
				all.Stop()
				cached.Stop()
			}, nil
		},
	})
	r.CreateStrategy = creation{r.CreateStrategy}
	return r, cached
}
