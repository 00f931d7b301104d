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
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

// legacyVersion requests one group-version's APIResourceList and converts it as kube-aggregator
// does.
func (d *Discovery) legacyVersion(ctx context.Context, old version, e *registry.Entry) *version {
	a, err := documents.Get(ctx, d.cfg.From(e), documents.Question{Path: e.Path(), Accept: runtime.ContentTypeJSON, Limit: d.cfg.MaxBody, Turn: d.turn})
	defer a.Done()
	if err == nil && a.Status != http.StatusOK {
		err = a.Unexpected()
	}
	hash := negotiate.Hash(a.Body)
	if err == nil && hash == old.hash {
		old.confirmed, old.err = time.Now(), nil // a large one need not be decoded each time
		return &old
	}
	var doc *apidiscoveryv2.APIVersionDiscovery
	if err == nil {
		if doc, err = d.convert(a); err != nil {
			err = a.Invalid(err)
		}
	}
	if err != nil {
		old.err = err
		return &old
	}
	v := d.accept(old, e.GroupVersion, doc, time.Now())
	if v.err == nil {
		v.hash = hash
	}
	return v
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
