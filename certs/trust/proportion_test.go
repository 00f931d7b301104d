package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
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
	twice := root.Intermediate("a")
	crossed := func(like *x509.Certificate) (chain []*x509.Certificate) { // the new CA is signed by itself and by the old one
		for _, key := range []string{"leaf", "new", "new", "old"} {
			chain = append(chain, &x509.Certificate{
				Raw: []byte(fmt.Sprint(len(chain))), RawSubject: []byte("ca"), RawIssuer: []byte("ca"), RawSubjectPublicKeyInfo: []byte(key), Extensions: like.Extensions,
			})
		}
		return chain
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
		{"a file that has its CAs twice", of(twice, root.Certificate, twice.Certificate, root.Certificate), true},
		{"a CA that is cross-signed by its namesake", crossed(root.Certificate), true},
		{"with names, by which crypto/x509 tells them apart", crossed(root.Issue(pki.Leaf{Names: []string{"a"}}).Certificate), false},
		{"a bundle of others", of(root, same(15)...), true},
		{"two roots of one name", of(pki.NewCA("same"), same(2)...), true},
		{"and of the leaf", append(pki.NewCA("same").Issue(pki.Leaf{CommonName: "same"}).Chain(), same(2)...), true},
		{"four of one name", of(pki.NewCA("same"), same(4)...), false},
		{"fifteen of one name", of(pki.NewCA("same"), same(15)...), false},
		{"too many", of(root, same(16)...), false},
	} {
		check.Same(t, tc.ok, Bounded(tc.chain) == nil, "%s: is verified", tc.name)
	}
}

// Whatever is in a bundle or a chain, reading and verifying it costs in proportion to its size. So does forgetting all
// APIServices, during which nobody dials.
func TestInProportion(t *testing.T) {
	ca := pki.NewCA("ca")
	var many, alike []byte
	for i := range 80 {
		many, alike = append(many, pki.NewCA(fmt.Sprint(i)).PEM()...), append(alike, pki.NewCA("ca").PEM()...)
	}
	part := func(bundle []byte, n int) []byte { return bundle[:n*len(bundle)/80] }
	parsed := func(name string, n int, text func(n int) []byte) proportion.Row {
		return proportion.Row{Name: name, N: n, Of: func(n int) (int, func() any) {
			data := append(text(n), ca.PEM()...)
			return len(data), func() any {
				certs, err := bundle.Parse(data)
				return []any{newRoots(certs), err}
			}
		}}
	}
	repeat := func(text string) func(n int) []byte {
		return func(n int) []byte { return bytes.Repeat([]byte(text), n) }
	}
	verified := func(name string, n int, trusted func(n int) []byte, chain func(n int) []*x509.Certificate) proportion.Row {
		return proportion.Row{Name: name, N: n, Of: func(n int) (int, func() any) {
			certs, _ := bundle.Parse(trusted(n))
			r, shown := newRoots(certs), chain(n)
			sent := len(trusted(n))
			for _, c := range shown {
				sent += len(c.Raw)
			}
			return sent, func() any {
				v := &view{name: serverName, current: r}
				got, _, err := v.verify(shown, time.Now())
				return []any{got, err}
			}
		}}
	}
	leaf := func(l pki.Leaf) func(int) []*x509.Certificate {
		c := ca.Issue(l).Certificate
		return func(int) []*x509.Certificate { return []*x509.Certificate{c} }
	}
	usual := pki.Leaf{CommonName: "leaf", Names: []string{serverName}}
	named := func(n int) []*x509.Certificate {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("%d.example.com", i))
		}
		return leaf(pki.Leaf{Names: names})(n)
	}
	own := func(int) []byte { return ca.PEM() }
	proportion.Check(t,
		parsed("certificates", 20, func(n int) []byte { return bytes.Clone(part(many, n)) }),
		parsed("one certificate again and again", 20, func(n int) []byte { return bytes.Repeat(ca.PEM(), n) }),
		parsed("noise", 2000, repeat("# noise\n")), parsed("dashes", 4000, repeat("-")), parsed("lines of dashes", 1000, repeat("-----\n")),
		parsed("lines that begin a certificate", 300, repeat("-----BEGIN CERTIFICATE-----\n")), parsed("lines that begin anything", 300, repeat("-----BEGIN X-----\n")),
		parsed("lines that begin different things", 300, func(n int) (b []byte) {
			for i := range n {
				b = fmt.Appendf(b, "-----BEGIN %06d-----\n", i)
			}
			return b
		}),
		parsed("blocks with headers", 200, repeat("-----BEGIN CERTIFICATE-----\nA: b\n\naGVsbG8=\n-----END CERTIFICATE-----\n")),
		parsed("lines that end a certificate", 300, repeat("-----END CERTIFICATE-----\n")),
		parsed("lines that begin and end", 300, repeat("-----BEGIN A-----\n-----END B-----\n")),
		parsed("headers of a block", 300, func(n int) []byte {
			headers := map[string]string{}
			for i := range n {
				headers[fmt.Sprint(i)] = "v"
			}
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: headers, Bytes: []byte("x")})
		}),
		parsed("broken certificates", 300, func(n int) []byte {
			return bytes.Repeat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), n)
		}),
		parsed("blanks in a certificate", 2000, func(n int) []byte {
			return []byte(strings.Replace(string(ca.PEM()), "\n", "\n"+strings.Repeat(" ", n), 2))
		}),
		verified("CAs that have not signed it", 20, func(n int) []byte { return part(many, n) }, leaf(usual)),
		verified("CAs of its issuer's name that have not signed it", 20, func(n int) []byte { return part(alike, n) }, leaf(usual)),
		verified("CAs besides the one that has signed it", 20, func(n int) []byte { return append(ca.PEM(), part(alike, n)...) }, leaf(usual)),
		verified("names of a certificate", 100, own, named),
		verified("organizations of a certificate", 100, own, func(n int) []*x509.Certificate {
			return leaf(pki.Leaf{Names: []string{serverName}, Organizations: strings.Split(strings.Repeat("o,", n)+"o", ",")})(n)
		}),
		verified("organizations of a certificate that is refused", 2000, own, func(n int) []*x509.Certificate {
			return leaf(pki.Leaf{Names: []string{"other.svc"}, Organizations: strings.Split(strings.Repeat("o,", n)+"o", ",")})(n)
		}),
		verified("certificates that lead nowhere", 3, own, func(n int) []*x509.Certificate {
			certs, _ := bundle.Parse(part(many, n))
			return append(leaf(usual)(n), certs...)
		}),
		verified("certificates of the issuer's name", 3, own, func(n int) []*x509.Certificate {
			certs, _ := bundle.Parse(part(alike, n))
			return append(leaf(usual)(n), certs...)
		}),
		proportion.Row{Name: "APIServices that leave", N: 500, Of: func(n int) (int, func() any) {
			return 64 * n, func() any {
				var all []*registry.Entry
				t := New(Config{})
				for i := range n {
					e := &registry.Entry{Name: fmt.Sprint(i), Backend: &registry.Backend{Owner: fmt.Sprint(i)}}
					t.backends[e.Name], all = t.newBackend(e.Name), append(all, e)
					t.metrics.reloads.WithLabelValues(e.Name, "success")
				}
				for _, e := range all {
					t.drop(e, nil)
				}
				return nil
			}
		}},
	)
}
