package discovery

import (
	"context"
	"net/http"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// legacyVersion requests one group-version's APIResourceList and converts it as kube-aggregator
// does.
func (d *Discovery) legacyVersion(ctx context.Context, old version, e *registry.Entry) *version {
	doc, err := d.askLegacy(ctx, e)
	if err != nil {
		old.err = err
		return &old
	}
	return accept(old, e.GroupVersion, doc, time.Now())
}

func (d *Discovery) askLegacy(ctx context.Context, e *registry.Entry) (*apidiscoveryv2.APIVersionDiscovery, error) {
	a, err := documents.Get(ctx, d.cfg.From(e), documents.Question{Path: e.Path(), Accept: runtime.ContentTypeJSON})
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, a.Unexpected()
	}
	doc, err := d.convert(a)
	if err != nil {
		return nil, a.Invalid(err)
	}
	return doc, nil
}

// convert converts an APIResourceList to aggregated discovery.
func (d *Discovery) convert(a documents.Answer) (*apidiscoveryv2.APIVersionDiscovery, error) {
	list := &metav1.APIResourceList{}
	if err := decodeForeign(d.codecs.legacy, &a, list); err != nil {
		return nil, err
	}
	resources, err := endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it read
	}
	return &apidiscoveryv2.APIVersionDiscovery{Resources: resources}, nil
}
