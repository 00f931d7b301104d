package certs

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Who has given a certificate for some names serves no other one, self-signed, beside it.
func TestSNIAlone(t *testing.T) {
	s := store(t, Config{SNI: []PairSource{pairFiles(t, pki.NewCA("ca").Issue(pki.Leaf{CommonName: "a.test", Names: []string{"a.test"}}))}})
	for _, f := range s.followed {
		if f.source == "inline" {
			t.Errorf("%s is made up", f.use)
		}
	}
}
