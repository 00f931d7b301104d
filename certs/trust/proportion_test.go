package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Whatever is in a bundle or a chain, reading and verifying it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	ca := pki.NewCA("ca")
	var many, alike []byte
	for i := range 80 {
		many, alike = append(many, pki.NewCA(fmt.Sprint(i)).PEM()...), append(alike, pki.NewCA("ca").PEM()...)
	}
	part := func(bundle []byte, n int) []byte { return bundle[:n*len(bundle)/80] }
	row := func(name string, n int, of func(n int) (int, func() any)) proportion.Row {
		return proportion.Row{Name: name, N: n, Of: of}
	}
	parsed := func(name string, n int, text func(n int) []byte) proportion.Row {
		return row(name, n, func(n int) (int, func() any) {
			data := append(text(n), ca.PEM()...)
			return len(data), func() any {
				certs, err := bundle.Parse(data)
				return []any{newRoots(certs), err}
			}
		})
	}
	repeat := func(text string) func(n int) []byte {
		return func(n int) []byte { return bytes.Repeat([]byte(text), n) }
	}
	verified := func(name string, n int, trusted func(n int) []byte, chain func(n int) []*x509.Certificate) proportion.Row {
		return row(name, n, func(n int) (int, func() any) {
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
		})
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
		verified("certificates that lead nowhere", 3, own, func(n int) []*x509.Certificate {
			certs, _ := bundle.Parse(part(many, n))
			return append(leaf(usual)(n), certs...)
		}),
		verified("certificates of the issuer's name", 3, own, func(n int) []*x509.Certificate {
			certs, _ := bundle.Parse(part(alike, n))
			return append(leaf(usual)(n), certs...)
		}),
	)
}
