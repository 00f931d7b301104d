package registry

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// bundle is a parsed caBundle. Parsing costs about 20 µs per certificate, so the result is kept
// with the entry.
type bundle struct {
	pem string
	// err says why it has no usable certificate.
	err error
	// skipped counts the blocks that are no valid certificates.
	skipped int
}

// bundle returns an APIService's parsed caBundle, nil if it has none. Was is the previous result
// for the APIService.
func (b *builder) bundle(object *apiregistrationv1.APIService, was *bundle) *bundle {
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
		b.bundles = make(map[string]*bundle)
	}
	parsed := parseBundle(raw)
	b.bundles[parsed.pem] = parsed
	return parsed
}

// parseBundle is as lenient as x509.CertPool.AppendCertsFromPEM, which client-go uses: one valid
// certificate is enough, and other blocks are skipped. Skipped blocks are counted, because they are
// hardly ever intended.
func parseBundle(raw []byte) *bundle {
	b := &bundle{pem: string(raw)}
	good := 0
	var cause error
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(block.Headers) != 0 {
			b.skipped++
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			cause = err
			b.skipped++
			continue
		}
		good++
	}
	switch {
	case good > 0:
	case cause != nil:
		b.err = fmt.Errorf("reading certificate: %w", cause)
	default:
		b.err = errors.New("no PEM block of type CERTIFICATE in it")
	}
	return b
}
