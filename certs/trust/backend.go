package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// maxLeaves bounds the leaves remembered of one backend: one per endpoint, and the status page shows no more.
	maxLeaves = 16
	// leafMemory is how long a leaf that is no longer presented is remembered. Every endpoint is dialled anew by its prober within seconds, so five minutes
	// without it mean that it is gone.
	leafMemory = 5 * time.Minute
	// forgetEvery is how often all are looked at for such leaves: ten thousand take a few milliseconds.
	forgetEvery = time.Minute
)

// backend is the trust of one APIService's backend, which outlives the *registry.Backend values: they change with every caBundle. Or it is that of all that have one
// *registry.Backend, which is never another's.
type backend struct {
	name    string // the APIService's. Empty: it is that of all
	hooks   *hooks
	current atomic.Pointer[view]

	// mu guards what follows and orders the changes of current. Verification runs under it (some 100 µs for a chain), I/O never.
	mu      sync.Mutex
	spec    *registry.Backend
	all     *backend // the trust of all that have spec. Nil: there is none, or it is this
	overlap time.Duration
	source  string // "inline", "system", "none" or "configmap <name>/<key>"
	inForce bool   // a live chain needed replaced roots
	ended   bool   // the APIService is gone
	guards  map[*guard]struct{}
	leaves  map[[sha256.Size]byte]leaf
	users   map[string]struct{} // who has spec, if it is that of all
	payer   string              // one of them, for whom is counted what is refused; else name
}

// leaf is a certificate that an endpoint presented.
type leaf struct {
	cert *x509.Certificate
	root identity
	seen time.Time
}

// guard is an open connection whose chain is to keep verifying.
type guard struct {
	chain []*x509.Certificate
	// until is when the chain is to be looked at again. Zero: only when the view changes.
	until time.Time
	lost  chan struct{} // closed once, by recheckLocked
}

func newBackend(name string, h *hooks) *backend {
	b := &backend{name: name, payer: name, hooks: h, guards: make(map[*guard]struct{}), leaves: make(map[[sha256.Size]byte]leaf), users: make(map[string]struct{})}
	b.current.Store(&view{fault: refuse(reasonInvalidBundle, nil, "the CA bundle has not been read yet")})
	return b
}

// apply takes what the table says of the backend. It leaves a referenced bundle to bundle. all is the trust of all that have spec, whose bundle was read; nil: there is none.
func (b *backend) apply(spec *registry.Backend, overlap time.Duration, all *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.overlap, b.all = overlap, all
	if b.spec == spec {
		return
	}
	b.spec = spec
	now := time.Now()
	if v := b.current.Load(); v.name != spec.ServerName {
		b.current.Store(v.named(spec.ServerName))
	}
	switch v := b.current.Load(); {
	case spec.Insecure:
		b.source = "none"
		if !v.insecure {
			b.setLocked(v.skipping(now))
		}
	case spec.CAFrom != "":
		b.source = "configmap " + spec.Namespace + "/" + spec.CAFrom
		if v.insecure {
			// Nothing was verified so far, so there is nothing to fall back on until the ConfigMap has been read.
			b.setLocked(v.with(nil, b.unread(), 0, now))
		}
	case len(spec.CABundle) == 0:
		b.source = "system"
		b.bundleLocked(nil, nil, now)
	case all != nil:
		b.source = "inline"
		read := all.current.Load()
		b.takeLocked(read.current, read.fault, now)
	default:
		b.source = "inline"
		b.bundleLocked([]byte(spec.CABundle), nil, now)
	}
	b.recheckLocked(now)
}

func (b *backend) unread() *Error {
	return refuse(reasonInvalidBundle, nil, "%s has not been read yet", b.source)
}

// referenced takes the bundle that spec's ConfigMap holds, or the fact that it holds none (err). It is dropped when the reference has changed meanwhile.
func (b *backend) referenced(spec *registry.Backend, data []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spec != spec || spec.Insecure {
		return
	}
	now, before := time.Now(), b.current.Load()
	b.bundleLocked(data, err, now)
	b.recheckLocked(now)
	if b.current.Load() != before {
		b.hooks.renewed(b.name)
	}
}

// bundleLocked makes the bundle the backend's roots. Empty data without err means the system's roots.
func (b *backend) bundleLocked(data []byte, err error, now time.Time) {
	var next *roots
	var fault *Error
	switch {
	case err != nil:
		fault = refuse(reasonInvalidBundle, err, "reading the CA bundle from %s: %v", b.source, err)
	case len(data) == 0:
		next = systemRoots()
	default:
		certs, perr := ParseBundle(data)
		if len(certs) == 0 {
			fault = refuse(reasonInvalidBundle, perr, "the CA bundle (%s) holds no readable certificate: %v", b.source, perr)
			break
		}
		next = newRoots(certs)
		if perr != nil {
			next.warning = perr.Error()
		}
	}
	b.takeLocked(next, fault, now)
}

// takeLocked makes next the backend's roots, or takes it that there are none.
func (b *backend) takeLocked(next *roots, fault *Error, now time.Time) {
	switch v := b.current.Load(); {
	case fault != nil && v.fault != nil && fault.Message == v.fault.Message:
		return
	case next != nil && !v.insecure && v.current != nil && v.current.same(next):
		return
	default:
		b.setLocked(v.with(next, fault, b.overlap, now))
	}
	b.hooks.reloaded(b.name, b.source, fault, next)
}

func (b *backend) setLocked(v *view) {
	b.inForce = false
	b.current.Store(v)
	for _, p := range v.previous {
		b.hooks.ends(p.until)
	}
}

// handshake verifies what an endpoint has just presented. It is called by crypto/tls for every new connection.
func (b *backend) handshake(chain []*x509.Certificate) error {
	now := time.Now()
	v := b.current.Load()
	got, old, err := v.verify(chain, now)
	b.hooks.count(chain, err)
	if err != nil {
		b.mu.Lock()
		payer := b.payer
		b.mu.Unlock()
		b.hooks.refused(payer, err)
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remember(chain[:min(len(chain), 1)], got.root, now)
	if b.current.Load() != v {
		// The trust changed while the chain was verified: what counts is the trust of now.
		if got, old, err = b.current.Load().verify(chain, now); err != nil {
			return err
		}
	}
	switch v := b.current.Load(); {
	case old && !b.inForce:
		b.inForce = true
		b.hooks.overlapping(b.name, got.until)
	case !old && !v.insecure && len(v.previous) > 0:
		b.current.Store(v.settled(now, true))
		b.inForce = false
		b.hooks.settled(b.name)
		b.recheckLocked(now)
	}
	return nil
}

// remember keeps the leaf for status and metrics, the least recently seen one giving way; the caller holds the mutex.
func (b *backend) remember(chain []*x509.Certificate, root *x509.Certificate, now time.Time) {
	for _, c := range chain {
		l := leaf{cert: c, seen: now}
		if root != nil {
			l.root = identify(root)
		}
		b.leaves[sha256.Sum256(c.Raw)] = l
	}
	for len(b.leaves) > maxLeaves {
		var oldest [sha256.Size]byte
		at := now.Add(1)
		for k, l := range b.leaves {
			if l.seen.Before(at) {
				oldest, at = k, l.seen
			}
		}
		delete(b.leaves, oldest)
	}
}

// guard adds an open connection. Its channel is closed at once when the chain does not verify now.
func (b *backend) guard(chain []*x509.Certificate) *guard {
	g := &guard{chain: chain, lost: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		close(g.lost)
		return g
	}
	b.guards[g] = struct{}{}
	b.checkLocked(g, b.current.Load(), time.Now())
	return g
}

// guarding reports whether a connection that was verified here is open.
func (b *backend) guarding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.guards) > 0
}

func (b *backend) release(g *guard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.guards, g)
}

// recheckLocked ends the guards whose chain the present view does not verify.
func (b *backend) recheckLocked(now time.Time) {
	v := b.current.Load()
	for g := range b.guards {
		b.checkLocked(g, v, now)
	}
}

func (b *backend) checkLocked(g *guard, v *view, now time.Time) {
	got, _, err := v.verify(g.chain, now)
	if err != nil {
		delete(b.guards, g)
		close(g.lost)
		return
	}
	g.until = got.until
	b.hooks.ends(g.until)
}

// join takes it that an APIService has spec.
func (b *backend) join(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users[name] = struct{}{}
	b.payer = cmp.Or(b.payer, name)
}

// part takes it that an APIService has spec no longer, and returns how many have.
func (b *backend) part(name string) (left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.users, name)
	if b.payer == name {
		b.payer = ""
		for b.payer = range b.users {
			break
		}
	}
	return len(b.users)
}

// end closes every guard: the APIService is gone, and its trust with it.
func (b *backend) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for g := range b.guards {
		delete(b.guards, g)
		close(g.lost)
	}
}

// tick ends what time has ended: replaced roots, guarded chains, leaves long unseen.
func (b *backend) tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.current.Load()
	kept := live(v.previous, now)
	for _, p := range kept {
		b.hooks.ends(p.until)
	}
	if len(kept) < len(v.previous) {
		b.current.Store(v.settled(now, false))
		if len(kept) == 0 {
			b.inForce = false
			b.hooks.settled(b.name)
		}
		b.recheckLocked(now)
	}
	v = b.current.Load()
	for g := range b.guards {
		if b.hooks.ends(g.until); !g.until.IsZero() && !now.Before(g.until) {
			b.checkLocked(g, v, now)
		}
	}
	for k, l := range b.leaves {
		if now.Sub(l.seen) > leafMemory {
			delete(b.leaves, k)
		}
	}
}
