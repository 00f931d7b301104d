package registry

import (
	"bytes"
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The five bundles about which registry and trust disagreed when each had a parser. A block with
// headers is no certificate, as for client-go, which crypto/x509 decides.
func TestBundles(t *testing.T) {
	ca, other := pki.NewCA("ca").PEM(), pki.NewCA("other").PEM()
	headed := bytes.Replace(ca, []byte("CERTIFICATE-----\n"), []byte("CERTIFICATE-----\nProc-Type: 4\n\n"), 1)
	key := pki.NewCA("ca").Issue(pki.Leaf{}).KeyPEM()
	const cut = "reading bundle: 1 of 2 certificates are broken or cut short"
	for name, tc := range map[string]struct {
		pem     []byte
		certs   int
		warning string
	}{
		"whole":              {ca, 1, ""},
		"headers":            {headed, 0, ""},
		"headers, and whole": {slices.Concat(headed, ca), 1, cut},
		"above 1 MiB":        {slices.Concat(bytes.Repeat([]byte("\n"), bundle.Max), ca), 0, ""},
		"one and a half":     {slices.Concat(ca, other[:len(other)/2]), 1, cut},
		"with a key":         {slices.Concat(ca, key), 1, ""},
		"another type":       {bytes.ReplaceAll(ca, []byte("CERTIFICATE"), []byte("PUBLIC KEY")), 0, ""},
	} {
		b := parseBundle(tc.pem)
		certs, err := bundle.Parse(tc.pem) // as trust does
		if len(certs) != tc.certs || b.warning != tc.warning || (b.err == nil) != (tc.certs > 0) || (err == nil) != (tc.certs > 0 && tc.warning == "") {
			t.Errorf("%s: %d certificates, %v; warning %q, %v", name, len(certs), err, b.warning, b.err)
		}
	}
}
