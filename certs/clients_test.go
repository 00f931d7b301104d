package certs

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// worth reports whether a chain currently verifies as a user's and as a front proxy's.
func worth(c *Clients, chain []*x509.Certificate) (user, proxy bool) {
	users, _ := c.VerifyUser(chain)
	proxies, _ := c.VerifyFrontProxy(chain)
	return len(users) > 0, len(proxies) > 0
}

// Users become front proxies only where a CA of theirs is one of front proxies, or issued by one.
func TestSharedCAs(t *testing.T) {
	made := func(raw, subject, key string) *x509.Certificate {
		return &x509.Certificate{Raw: []byte(raw), RawSubject: []byte(subject), RawSubjectPublicKeyInfo: []byte(key)}
	}
	root, namesake := pki.NewCA("root"), pki.NewCA("root")
	middle := root.Intermediate("middle").Certificate
	for name, tc := range map[string]struct {
		client, proxy *x509.Certificate
		refused       bool
	}{
		"the same":                   {middle, middle, true},
		"renewed":                    {made("old", "ca", "key"), made("new", "ca", "key"), true},
		"a namesake":                 {made("old", "ca", "key"), made("new", "ca", "other key"), false},
		"the same key, another name": {made("old", "ca", "key"), made("new", "other", "key"), false},
		"its issuer":                 {middle, root.Certificate, true},
		"a namesake of its issuer":   {middle, namesake.Certificate, false},
	} {
		bundle := []*x509.Certificate{namesake.Certificate, tc.proxy}
		trusted := clientTrust{client: []*x509.Certificate{tc.client}, proxy: bundle}
		if err := trusted.check(); errors.Is(err, errShared) != tc.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// shake is a handshake of a client with the listeners.
func (s *stage) shake(client *tls.Config) (near, far tls.ConnectionState, err error) {
	s.t.Helper()
	return cast.Shake(s.t, client, s.TLS())
}

// asks returns of which CAs a client is asked for certificates. Any certificate will do, and none
// is remembered for another handshake.
func (s *stage) asks() (subjects []string) {
	s.t.Helper()
	stranger := s.pair("stranger").TLS()
	client := &tls.Config{
		InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: tls.NewLRUClientSessionCache(1),
		MaxVersion: tls.VersionTLS12, // a ticket would come within the handshake
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			subjects = nil
			for _, der := range info.AcceptableCAs {
				var name pkix.RDNSequence
				must.Get(asn1.Unmarshal(der, &name))(s.t)
				subjects = append(subjects, strings.TrimPrefix(name.String(), "CN="))
			}
			return &stranger, nil
		},
	}
	for range 2 {
		near, far := must.Get2(s.shake(client))(s.t)
		if near.DidResume || len(far.PeerCertificates) != 1 || !far.PeerCertificates[0].Equal(stranger.Leaf) {
			s.t.Errorf("%s: resumed: %v; presented: %v", s.at, near.DidResume, far.PeerCertificates)
		}
	}
	slices.Sort(subjects)
	return subjects
}
