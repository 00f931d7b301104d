package trust

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Anchor is a trust that never changes: one server name, and the roots that vouch for it. What verifies for one holder of an Anchor verifies for every holder of one
// with the same Key, whichever APIService it belongs to, so they may use each other's connections.
type Anchor struct {
	t    *Trust
	key  anchorKey
	view *view // without replaced roots and without fault
}

// anchorKey is what two Anchors must have in common to be the same.
type anchorKey struct {
	name     string
	insecure bool
	system   bool
	roots    [sha256.Size]byte // of the certificates, in their order
}

// Share returns the trust in b as an Anchor. It reports false while there is none that other APIServices could have, too: during an overlap, with a bundle that cannot
// be read, and with one that comes from a ConfigMap, which can change without a new table.
func (t *Trust) Share(b *registry.Backend) (*Anchor, bool) {
	s, err := t.lookup(b)
	if err != nil || b.CAFrom != "" {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.current.Load()
	if s.spec != b || s.ended || v.anyName || v.fault != nil || len(live(v.previous, time.Now())) > 0 || v.current == nil && !v.insecure {
		return nil, false
	}
	a := &Anchor{t: t, key: anchorKey{name: v.name, insecure: v.insecure}, view: &view{name: v.name, insecure: v.insecure, current: v.current, changed: v.changed}}
	if !v.insecure {
		a.key.system, a.key.roots = v.current.system(), v.current.digest
	}
	return a, true
}

// Key is equal for Anchors that are the same trust.
func (a *Anchor) Key() any { return a.key }

// TLS is Trust.TLS for connections that are verified against the Anchor, and nothing else.
func (a *Anchor) TLS() *tls.Config {
	return &tls.Config{
		ServerName:           a.view.name,
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: a.t.cfg.ClientCertificate,
		// As in Trust.TLS: VerifyConnection does all that is skipped here, and gives a reason.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, _, err := a.view.verify(cs.PeerCertificates, time.Now())
			a.t.hooks.count(cs.PeerCertificates, err)
			if err != nil {
				return err
			}
			return nil
		},
	}
}

// anchorLook is how often a guard looks at the clock at least: a timer stands still while the machine is suspended.
const anchorLook = time.Minute

// Guard is Trust.Guard for a connection that was verified against the Anchor: only time can end its trust.
func (a *Anchor) Guard(chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	g := &anchorGuard{a: a, chain: chain, lost: make(chan struct{})}
	g.look()
	return g.lost, g.release
}

// anchorGuard is an open connection whose chain is to keep verifying.
type anchorGuard struct {
	a     *Anchor
	chain []*x509.Certificate
	lost  chan struct{} // closed once, by look

	mu       sync.Mutex // guards what follows
	timer    *time.Timer
	until    time.Time // when the chain is to be verified again; zero: not yet, or never
	verified bool
	released bool
}

// look verifies the chain when its time has come, and comes back.
func (g *anchorGuard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.released {
		return
	}
	if !g.verified || !g.until.IsZero() && !now.Before(g.until) {
		got, _, err := g.a.view.verify(g.chain, now)
		if err != nil {
			g.released = true
			close(g.lost)
			return
		}
		g.verified, g.until = true, got.until
	}
	next := anchorLook
	if !g.until.IsZero() {
		next = min(next, max(g.until.Sub(now), time.Millisecond))
	}
	g.timer = time.AfterFunc(next, g.look)
}

func (g *anchorGuard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = true
	if g.timer != nil {
		g.timer.Stop()
	}
}
