package certs

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// With only SNI pairs, no self-signed pair is served in addition.
func TestSNIAlone(t *testing.T) {
	s := store(t, Config{SNI: []PairSource{pairFiles(t, pki.NewCA("ca").Issue(pki.Leaf{CommonName: "a.test", Names: []string{"a.test"}}))}})
	for _, f := range s.followed {
		if f.source == "inline" {
			t.Errorf("%s is self-signed", f.use)
		}
	}
}
