package trust

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := prometheus.NewRegistry()
		client := pki.NewCA("front-proxy-ca").Issue(pki.Leaf{CommonName: "front-proxy-client"}).TLS()
		b := newBench(t, Config{Metrics: metrics, ClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client, nil }})
		old, next := pki.NewCA("old"), pki.NewCA("next")
		pair := func(ca *pki.CA) *pki.Pair {
			return ca.Issue(pki.Leaf{CommonName: "apiserver", Names: []string{"127.0.0.1"}})
		}
		dial := func(ca *pki.CA, name string, certificate bool) (peers int, err error) {
			t.Helper()
			cfg := must.Get(b.LocalTLS(certificate))(t)
			cfg.ServerName = name
			return peers, shake(t, cfg, &tls.Config{
				Certificates: []tls.Certificate{pair(ca).TLS()}, ClientAuth: tls.RequestClientCert, MaxVersion: tls.VersionTLS12,
				VerifyConnection: func(cs tls.ConnectionState) error {
					peers = len(cs.PeerCertificates)
					return nil
				},
			})
		}
		if s := b.Status()[0]; s.Source != "system" || s.Changed.IsZero() {
			t.Errorf("before the first bundle: %+v", s)
		}
		must.Get(b.LocalTLS(false))(t)
		must.Do(t, b.LocalBundle(nil))
		if _, err := dial(old, "127.0.0.1", false); err == nil {
			t.Error("the system's roots trust a test's CA")
		}
		must.Do(t, b.LocalBundle(pki.Bundle(old)))
		if err := b.LocalBundle([]byte("-")); err == nil {
			t.Error("the first byte of a file was accepted")
		}
		if _, err := dial(old, "127.0.0.1", false); err != nil {
			t.Error(err)
		}
		if _, err := dial(old, "10.0.0.1", false); err == nil {
			t.Error("the name was not verified")
		}
		if _, err := dial(next, "127.0.0.1", false); err == nil {
			t.Error("another CA was accepted")
		}
		for _, certificate := range []bool{false, true} {
			if peers, err := dial(old, "127.0.0.1", certificate); err != nil || (peers > 0) != certificate {
				t.Errorf("certificate %v: shown %d, %v", certificate, peers, err)
			}
		}
		open, release := b.LocalGuard([]*x509.Certificate{pair(old).Certificate})
		defer release()
		if err := b.LocalBundle(pki.Bundle(old, next)[:len(pki.Bundle(old))+50]); err == nil {
			t.Error("half a file was accepted")
		}
		if err := b.LocalBundle(pki.Bundle(old, next)); err != nil || lost(open) {
			t.Errorf("with an additional CA: %v, lost %v", err, lost(open))
		}
		if s := b.Status()[0]; s.APIService != localName || s.Source != "kubeconfig" || len(s.CAs) != 2 || len(s.Leaves) == 0 {
			t.Errorf("status %+v", s)
		}
		before := must.Get(b.LocalTLS(false))(t)
		before.ServerName = "127.0.0.1"
		if err := b.LocalBundle(pki.Bundle(next)); err != nil || !lost(open) {
			t.Errorf("after the CA was removed: %v, lost %v", err, lost(open))
		}
		if _, err := dial(old, "127.0.0.1", false); err == nil {
			t.Error("a removed CA was accepted")
		}
		if err := shake(t, before, &tls.Config{Certificates: []tls.Certificate{pair(old).TLS()}}); err == nil {
			t.Error("a CA that was removed during a dial was accepted")
		}
		if err := shake(t, before, obsolete(pair(next))); err == nil {
			t.Error("TLS 1.1 was accepted")
		}
		open, released := b.LocalGuard(next.Issue(pki.Leaf{NotAfter: time.Now().Add(time.Minute)}).Chain())
		time.Sleep(time.Minute + time.Second)
		if b.tick(time.Now()); !lost(open) {
			t.Error("a connection outlived its certificate")
		}
		released()
		_, released = b.LocalGuard(pair(next).Chain())
		if released(); b.local.guarding() {
			t.Error("a closed connection is still guarded")
		}
		name := "fairlead_certificate_backend_expiration_timestamp_seconds local-apiserver ca next"
		if got := gather(t, metrics)[name]; got != float64(next.Certificate.NotAfter.Unix()) || time.Unix(int64(got), 0).Before(time.Now()) {
			t.Errorf("%s = %v", name, got)
		}
	})
}
