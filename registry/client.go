package registry

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1client "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
)

// cluster watches a kube-apiserver. Reflectors write straight into changes.
// There is no informer store: the writer's objects are the only copy.
type cluster struct {
	apiServices apiregistrationv1client.ApiregistrationV1Interface
	core        corev1client.CoreV1Interface
	discovery   discoveryv1client.DiscoveryV1Interface
	log         *slog.Logger
}

func newCluster(given *rest.Config, log *slog.Logger) (*cluster, error) {
	c := rest.CopyConfig(given)
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON // a quarter of JSON's cost to decode
	c.ContentType = runtime.ContentTypeProtobuf
	c.Timeout = 0 // it would cut watches
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("making client of the local apiserver: %w", err)
	}
	aggregation, err1 := apiregistrationv1client.NewForConfigAndClient(c, client)
	core, err2 := corev1client.NewForConfigAndClient(c, client)
	discovery, err3 := discoveryv1client.NewForConfigAndClient(c, client)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("making client of the local apiserver: %w", err)
	}
	return &cluster{apiServices: aggregation, core: core, discovery: discovery, log: log}, nil
}
