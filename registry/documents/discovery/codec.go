package discovery

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"net/url"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apidiscoveryv2conversion "k8s.io/apiserver/pkg/apis/apidiscovery/v2"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// codecs are the serializers of both kinds of documents. They are k8s.io/apiserver's own, so that
// the bytes are the same as kube-apiserver's.
type codecs struct {
	aggregated, legacy runtime.NegotiatedSerializer
}

func newCodecs() *codecs {
	agg, legacy := runtime.NewScheme(), runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(agg)) // it fails only for types that exclude each other
	utilruntime.Must(apidiscoveryv2conversion.RegisterConversions(agg))
	metav1.AddToGroupVersion(legacy, metav1.Unversioned)
	var options []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		options = append(options, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return &codecs{aggregated: serializer.NewCodecFactory(agg, options...), legacy: serializer.NewCodecFactory(legacy, options...)}
}

// aggregatedParams are the parameters that ask for aggregated discovery.
const aggregatedParams = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// recorder is a ResponseWriter that collects the output of a handler of k8s.io/apiserver.
type recorder struct {
	header http.Header
	body   bytes.Buffer
}

func (s *recorder) Header() http.Header         { return s.header }
func (s *recorder) WriteHeader(int)             {}
func (s *recorder) Write(b []byte) (int, error) { return s.body.Write(b) }

// formRequest returns a request for one form.
func formRequest(accept string, pretty bool) *http.Request {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{}, Header: http.Header{"Accept": {accept}}}
	if pretty {
		r.URL.RawQuery = "pretty=true"
	}
	return r
}

// writeAggregated writes a list as kube-apiserver does.
func (c *codecs) writeAggregated(s *recorder, list *apidiscoveryv2.APIGroupDiscoveryList, media string, pretty bool) {
	own := *list // encoding sets its kind for a while, and two forms may be rendered at the same time
	responsewriters.WriteObjectNegotiated(c.aggregated, aggregated.DiscoveryEndpointRestrictions, apidiscoveryv2.SchemeGroupVersion, s,
		formRequest(media+aggregatedParams, pretty), http.StatusOK, &own, true)
}

// writeLegacy writes an APIGroupList or an APIGroup as kube-aggregator does. No other goroutine may
// use the object: encoding sets its kind for a while.
func (c *codecs) writeLegacy(s *recorder, o runtime.Object, media string, pretty bool) {
	responsewriters.WriteObjectNegotiated(c.legacy, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, s, formRequest(media, pretty), http.StatusOK, o, false)
}

// writeVersions writes the legacy form of /api, which for the sake of Kubernetes 1.1 has no
// apiVersion.
func (c *codecs) writeVersions(s *recorder, v *metav1.APIVersions, media string, pretty bool) {
	apidiscovery.NewLegacyRootAPIHandler(addresses(v.ServerAddressByClientCIDRs), c.legacy, "/api").ServeHTTP(s, formRequest(media, pretty))
}

// decode decodes a body by its Content-Type alone: its sender controls what the body looks like.
// YAML is never accepted here.
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

// decodeForeign decodes a backend's document. A backend is asked for JSON, and a body without a
// Content-Type is JSON.
func decodeForeign(s runtime.NegotiatedSerializer, a *documents.Answer, into runtime.Object) error {
	media := runtime.ContentTypeJSON
	if t := a.Header.Get("Content-Type"); t != "" {
		var err error
		if media, _, err = mime.ParseMediaType(t); err != nil {
			return err //nolint:wrapcheck // it says what it read
		}
	}
	if media != runtime.ContentTypeJSON {
		return fmt.Errorf("the media type %q is not JSON", media)
	}
	if err := a.Bounded(max(maxObjects, len(a.Body)/bytesObject), max(maxValues, len(a.Body)/bytesValue)); err != nil {
		return err //nolint:wrapcheck // it says what was being done
	}
	return decode(s, media, a.Body, into)
}
