package trust

import (
	"crypto/x509"
	"fmt"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Chains of real peers are verified; chains that only multiply the work are rejected.
func TestChainCost(t *testing.T) {
	root := pki.NewCA("root")
	same := func(n int) (all []*x509.Certificate) { // by their names, each could have issued each other
		for range n {
			all = append(all, pki.NewCA("same").Certificate)
		}
		return all
	}
	of := func(ca *pki.CA, more ...*x509.Certificate) []*x509.Certificate {
		return append(ca.Issue(pki.Leaf{}).Chain(), more...)
	}
	deep := func(n int) *pki.CA {
		ca := root
		for i := range n {
			ca = ca.Intermediate(fmt.Sprint(i))
		}
		return ca
	}
	for _, tc := range []struct {
		name  string
		chain []*x509.Certificate
		ok    bool
	}{
		{"nothing", nil, true},
		{"a leaf", of(root), true},
		{"with its root", of(root, root.Certificate), true},
		{"five intermediates", of(deep(5), root.Certificate), true},
		{"as many as may be checked", of(deep(maxChecks-1), root.Certificate), true},
		{"one more", of(deep(maxChecks), root.Certificate), false},
		{"one more for the leaf", of(deep(maxChecks-1), root.Certificate, pki.NewCA(fmt.Sprint(maxChecks-2)).Certificate), false},
		{"an intermediate signed by two roots", of(root.Intermediate("a"), pki.NewCA("other").Intermediate("a").Certificate), true},
		{"a bundle of others", of(root, same(15)...), true},
		{"two roots of one name", of(pki.NewCA("same"), same(2)...), true},
		{"and of the leaf", append(pki.NewCA("same").Issue(pki.Leaf{CommonName: "same"}).Chain(), same(2)...), true},
		{"four of one name", of(pki.NewCA("same"), same(4)...), false},
		{"fifteen of one name", of(pki.NewCA("same"), same(15)...), false},
		{"too many", of(root, same(16)...), false},
	} {
		if err := Bounded(tc.chain); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
