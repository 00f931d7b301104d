package registry

import (
	"strings"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// parsedBundle is a parsed caBundle. Parsing costs about 20 µs per certificate, so the result is
// kept with the entry.
type parsedBundle struct {
	pem string
	// err says why it has no usable certificate.
	err error
	// warning says what is not usable beside a certificate that is. Empty means nothing.
	warning string
}

// bundle returns an APIService's parsed caBundle, nil if it has none. Was is the previous result
// for the APIService.
func (b *builder) bundle(object *apiregistrationv1.APIService, was *parsedBundle) *parsedBundle {
	raw := object.Spec.CABundle
	if len(raw) == 0 {
		return nil
	}
	if was != nil && was.pem == string(raw) {
		return was
	}
	if known, ok := b.bundles[string(raw)]; ok {
		return known
	}
	if b.bundles == nil {
		b.bundles = make(map[string]*parsedBundle)
	}
	parsed := parseBundle(raw)
	b.bundles[parsed.pem] = parsed
	return parsed
}

// parseBundle is as lenient as x509.CertPool.AppendCertsFromPEM, which client-go uses: one valid
// certificate is enough.
func parseBundle(raw []byte) *parsedBundle {
	b := &parsedBundle{pem: string(raw)}
	certs, err := bundle.Parse(raw)
	switch {
	case err == nil:
	case len(certs) == 0:
		b.err = err
	default:
		b.warning = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return b
}
