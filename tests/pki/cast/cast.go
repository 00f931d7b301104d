// Package cast has the CAs and certificates of stories, by name, and the handshakes between them.
package cast

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Cast are the CAs that a story has named so far.
type Cast map[string]*pki.CA

// CA returns the CA of this name. A number after # distinguishes CAs of one name.
func (c Cast) CA(name string) *pki.CA {
	if c[name] == nil {
		common, _, _ := strings.Cut(name, "#")
		c[name] = pki.NewCA(common)
	}
	return c[name]
}

// Bundle is a bundle of CAs, with | between them, or one with a fault.
func (c Cast) Bundle(names string) (text []byte) {
	for name := range strings.SplitSeq(names, "|") {
		switch name {
		case "":
		case "garbage":
			text = append(text, name...)
		case "cut":
			text = append(text, "-----BEGIN CERTIFICATE-----"...)
		case "nonsense":
			text = append(text, "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"...)
		default:
			text = append(text, c.CA(name).PEM()...)
		}
	}
	return text
}

// Pair issues a certificate. The text is the CA's name and, with commas, how it differs from leaf.
func (c Cast) Pair(t testing.TB, leaf pki.Leaf, text string) *pki.Pair {
	t.Helper()
	words := strings.Split(text, ",")
	ca := c.CA(words[0])
	in := func(d string) time.Time { return time.Now().Add(must.Get(time.ParseDuration(d))(t)) }
	story.Set(t, text, words[1:], map[string]func(v string){
		"cn": func(v string) { leaf.CommonName = v },
		"names": func(v string) {
			v = strings.ReplaceAll(v, ";", ",") // in one name
			leaf.Names = slices.DeleteFunc(strings.Split(v, "|"), func(n string) bool { return n == "" })
		},
		"until":   func(v string) { leaf.NotAfter = in(v) },
		"from":    func(v string) { leaf.NotBefore = in(v) },
		"sha1":    func(string) { leaf.SHA1 = true },
		"client":  func(string) { leaf.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
		"server":  func(string) { leaf.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
		"any":     func(string) { leaf.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} },
		"through": func(v string) { ca = ca.IntermediateUntil("middle", in(v)) }, // an intermediate CA that is valid so long
	})
	return ca.Issue(leaf)
}

// Shake runs one handshake in memory. It returns the client's state and the server's, and the
// client's error or, without one, the server's.
func Shake(t testing.TB, client, server *tls.Config) (near, far tls.ConnectionState, err error) {
	t.Helper()
	l := bufconn.Listen(64 << 10)
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		s := tls.Server(c, server)
		defer s.Close()
		err = s.HandshakeContext(t.Context())
		far = s.ConnectionState()
		ended <- err
		_, _ = io.Copy(io.Discard, s) // until the client closes
	}()
	c := must.Get(l.DialContext(t.Context()))(t)
	defer c.Close()
	conn := tls.Client(c, client)
	err = conn.HandshakeContext(t.Context())
	if err != nil {
		c.Close()
	}
	if ours := <-ended; err == nil {
		err = ours
	}
	return conn.ConnectionState(), far, err
}
