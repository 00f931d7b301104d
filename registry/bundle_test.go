package registry

import (
	"bytes"
	"crypto/x509"
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A block with headers is no certificate, as for client-go: crypto/x509 skips it.
func TestBundleSkips(t *testing.T) {
	ca := pki.NewCA("ca").PEM()
	headed := bytes.Replace(ca, []byte("CERTIFICATE-----\n"), []byte("CERTIFICATE-----\nProc-Type: 4\n\n"), 1)
	for name, tc := range map[string]struct {
		pem     []byte
		skipped int
		good    bool
	}{
		"whole": {ca, 0, true}, "headers": {headed, 1, false}, "one of two": {slices.Concat(headed, ca), 1, true},
		"another type": {bytes.ReplaceAll(ca, []byte("CERTIFICATE"), []byte("PUBLIC KEY")), 1, false},
	} {
		b := parseBundle(tc.pem)
		if b.skipped != tc.skipped || (b.err == nil) != tc.good || x509.NewCertPool().AppendCertsFromPEM(tc.pem) != tc.good {
			t.Errorf("%s: skipped %d, %v", name, b.skipped, b.err)
		}
	}
}
