package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"
)

// localName is what the local apiserver is called in metrics and status, where an APIService's name stands otherwise; no APIService can have it, theirs have a dot.
const localName = "local-apiserver"

// LocalBundle sets the roots that the local apiserver is verified with: the certificate-authority of the kubeconfig. Empty data means the system's roots, and so does
// never calling it. An unreadable bundle, or one of which only a part is readable, changes nothing: it comes from a file that may be half-written. A CA that is taken out is
// distrusted at once; the control plane's own procedure for rotating it has an overlap of its own.
func (t *Trust) LocalBundle(data []byte) error {
	if len(data) > 0 {
		if _, err := ParseBundle(data); err != nil {
			return err
		}
	}
	b := t.local
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source = "kubeconfig"
	now := time.Now()
	b.bundleLocked(data, nil, now)
	b.recheckLocked(now)
	return nil
}

// LocalTLS returns a client configuration for dialling the local apiserver, without a server name: the caller sets it, and adds its NextProtos. certificate tells whether the
// client certificate is shown. It is verified against the roots of this moment, so it is for one dial.
func (t *Trust) LocalTLS(certificate bool) (*tls.Config, error) {
	v := t.local.current.Load()
	if v.current == nil {
		return nil, errors.New("there is no bundle for the local apiserver")
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    v.current.pool,
		VerifyConnection: func(cs tls.ConnectionState) error {
			return t.local.handshake(cs.PeerCertificates)
		},
		// No ClientSessionCache: see the package's concurrency rule.
	}
	if certificate {
		cfg.GetClientCertificate = t.cfg.ClientCertificate
	}
	return cfg, nil
}

// LocalGuard is Guard for a connection to the local apiserver.
func (t *Trust) LocalGuard(chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	g := t.local.guard(chain)
	return g.lost, func() { t.local.release(g) }
}

// newLocal makes the trust in the local apiserver. Its name is verified by crypto/tls, because each of its addresses may have another.
func newLocal(h *hooks) *backend {
	b := newBackend(localName, h)
	b.source = "system"
	b.current.Store(&view{generation: 1, anyName: true, current: systemRoots(), changed: time.Now()})
	return b
}
