package discovery

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// codecs are the serializers of both kinds of documents: k8s.io/apiserver's, so that the bytes are kube-apiserver's.
type codecs struct {
	aggregated, legacy runtime.NegotiatedSerializer
	supported          []string // media types, by name
}

func newCodecs() *codecs {
	agg, legacy := runtime.NewScheme(), runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(agg)) // it fails only for types that exclude each other
	metav1.AddToGroupVersion(legacy, metav1.Unversioned)
	c := &codecs{aggregated: serializer.NewCodecFactory(agg), legacy: serializer.NewCodecFactory(legacy)}
	c.supported, _ = negotiation.MediaTypesForSerializer(c.legacy)
	return c
}

const aggregatedParams = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func (c *codecs) writeAggregated(w http.ResponseWriter, r *http.Request, list *apidiscoveryv2.APIGroupDiscoveryList) {
	own := *list // encoding sets its kind for a while, and two forms may be rendered at the same time
	responsewriters.WriteObjectNegotiated(c.aggregated, aggregated.DiscoveryEndpointRestrictions,
		apidiscoveryv2.SchemeGroupVersion, w, r, http.StatusOK, &own, true)
}

// writeLegacy writes o as kube-aggregator does. No other goroutine may use o: encoding sets its kind for a while.
func (c *codecs) writeLegacy(w http.ResponseWriter, r *http.Request, o runtime.Object) {
	responsewriters.WriteObjectNegotiated(c.legacy, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{},
		w, r, http.StatusOK, o, false)
}

// decode decodes a body by its Content-Type alone: its sender controls what it looks like. YAML is never accepted.
func decode(s runtime.NegotiatedSerializer, media string, body []byte, into runtime.Object) error {
	if media != runtime.ContentTypeJSON && media != runtime.ContentTypeProtobuf {
		return fmt.Errorf("the media type %q is neither JSON nor protobuf", media)
	}
	info, _ := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), media)
	if err := runtime.DecodeInto(info.Serializer, body, into); err != nil {
		return fmt.Errorf("decoding: %w", err)
	}
	return nil
}

// decodeForeign decodes a backend's document as the JSON that it is asked for, whatever Content-Type says: one that
// names none has Go's guess, text/plain. .NET's writers begin with a byte order mark.
func decodeForeign(s runtime.NegotiatedSerializer, a *documents.Answer, into runtime.Object) error {
	if err := a.Bounded(max(maxObjects, len(a.Body)/bytesObject), max(maxValues, len(a.Body)/bytesValue)); err != nil {
		return err //nolint:wrapcheck // it says what was being done
	}
	return decode(s, runtime.ContentTypeJSON, bytes.TrimPrefix(a.Body, []byte("\xef\xbb\xbf")), into)
}

func isAggregated(h http.Header) bool {
	_, p, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && p["g"] == "apidiscovery.k8s.io" && p["v"] == "v2" && p["as"] == "APIGroupDiscoveryList"
}

func (d *Discovery) convert(a documents.Answer) (*apidiscoveryv2.APIVersionDiscovery, error) {
	list := &metav1.APIResourceList{}
	if err := decodeForeign(d.codecs.legacy, &a, list); err != nil {
		return nil, err
	}
	// By name, as k8s.io/apiserver lists: prometheus-adapter's have the order of a map, and each would be another ETag.
	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	// Upstream refuses the whole list for one subresource of another scope than its resource, as metrics may have.
	scopes := make(map[string]bool) // :: resource → whether it is namespaced or, if it is not listed, a subresource is
	for _, r := range slices.Backward(list.APIResources) {
		resource, _, below := strings.Cut(r.Name, "/")
		scopes[resource] = r.Namespaced || below && scopes[resource] // its own is the last, and counts
	}
	for i := range list.APIResources {
		resource, _, _ := strings.Cut(list.APIResources[i].Name, "/")
		list.APIResources[i].Namespaced = scopes[resource]
	}
	resources, err := endpoints.ConvertGroupVersionIntoToDiscovery(list.APIResources)
	return &apidiscoveryv2.APIVersionDiscovery{Resources: resources}, err //nolint:wrapcheck // it says what it read
}
