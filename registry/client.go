package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// cluster watches a kube-apiserver. Reflectors write straight into changes: the writer's objects are the only copy.
type cluster struct {
	apiServices apiregistrationv1client.ApiregistrationV1Interface
	api         kubernetes.Interface
	unread      sync.Map // :: *lister → the error that says what it cannot read, and why
}

func newCluster(given *rest.Config) (*cluster, error) {
	c := rest.CopyConfig(given)
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON // decoded at a quarter the cost
	c.ContentType = runtime.ContentTypeProtobuf
	c.Timeout = 0 // it would cut watches
	client, err1 := rest.HTTPClientFor(c)
	aggregation, err2 := apiregistrationv1client.NewForConfigAndClient(c, client)
	api, err3 := kubernetes.NewForConfigAndClient(c, client)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("making client of the local apiserver: %w", err)
	}
	return &cluster{apiServices: aggregation, api: api}, nil
}

func (c *cluster) fault() (err error) {
	if c != nil {
		for _, v := range c.unread.Range {
			err, _ = v.(error) // of several one: in the order of the map, which is the same each time
		}
	}
	return err
}

// bundleAgain is when the versions of ClusterTrustBundles are tried again: an apiserver that starts may serve none yet.
const bundleAgain = 10 * time.Second

// watchBundle is Registry.Watch for a ClusterTrustBundle, in the best version that is served: v1 since Kubernetes 1.37,
// v1beta1 since 1.33 if it is enabled. After an hour they are tried again: the apiserver may have been upgraded.
func (c *cluster) watchBundle(ctx context.Context, name string, changed func(map[string][]byte, error)) error {
	ref := types.NamespacedName{Name: name}
	deliver := func(o runtime.Object) {
		switch o := o.(type) {
		case *certificatesv1.ClusterTrustBundle:
			changed(map[string][]byte{name: []byte(o.Spec.TrustBundle)}, nil)
		case *certificatesv1beta1.ClusterTrustBundle:
			changed(map[string][]byte{name: []byte(o.Spec.TrustBundle)}, nil)
		default:
			changed(nil, fmt.Errorf("getting ClusterTrustBundle %s: %w", name, fs.ErrNotExist))
		}
	}
	if c == nil {
		changed(nil, fmt.Errorf("there are no ClusterTrustBundles without a local apiserver: %w", fs.ErrNotExist))
		<-ctx.Done()
	}
	for ctx.Err() == nil {
		absent := 0
		v1, v1beta1 := c.api.CertificatesV1().RESTClient(), c.api.CertificatesV1beta1().RESTClient()
		for _, l := range []*lister{
			c.one(&certificatesv1.ClusterTrustBundle{}, v1, "clustertrustbundles", ref, deliver),
			c.one(&certificatesv1beta1.ClusterTrustBundle{}, v1beta1, "clustertrustbundles", ref, deliver),
		} {
			within, stop := context.WithTimeout(ctx, time.Hour)
			l.absent = func() { absent++; stop() }
			l.reflect(within)
			stop()
		}
		if absent == 2 {
			changed(nil, fmt.Errorf("the local apiserver serves ClusterTrustBundles "+
				"neither as certificates.k8s.io/v1 nor as v1beta1: %w", fs.ErrNotExist))
			latest.Sleep(ctx, bundleAgain)
		}
	}
	return ctx.Err()
}
