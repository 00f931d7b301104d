package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// localName stands for the local apiserver in metrics and status, in place of an APIService's name.
// No APIService can have it: their names have a dot.
const localName = "local-apiserver"

// LocalBundle sets the roots for verifying the local apiserver: the certificate-authority of the
// kubeconfig. Empty data means the system's roots, as before the first call. A bundle that is
// wholly or partly unreadable changes nothing: its file may be half-written. A CA that is removed
// is distrusted at once: the control plane's own procedure for rotating it has an overlap.
func (t *Trust) LocalBundle(data []byte) error {
	if len(data) > 0 {
		if _, err := bundle.Parse(data); err != nil {
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

// LocalTLS returns a client configuration for dialling the local apiserver, without a server name.
// The caller sets the name and adds its NextProtos. certificate says whether to present the client
// certificate. The result has the current roots, so use it for one dial.
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
	return t.local.guard(chain)
}

// newLocal returns the trust in the local apiserver. crypto/tls verifies its name, because each of
// its addresses may have another.
func newLocal(h *hooks) *backend {
	b := newBackend(localName, h)
	b.source = "system"
	b.current.Store(&view{anyName: true, current: &roots{}, changed: time.Now()})
	return b
}
