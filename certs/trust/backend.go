package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// maxLeaves bounds a backend's leaves, those seen last of each CA, and its CAs in metrics: one key may have many.
	maxLeaves = 16
	// leafMemory is how long a leaf is remembered after it was last presented. The prober dials
	// every endpoint anew within seconds, so five minutes without it mean that it is gone.
	leafMemory = 5 * time.Minute
	// refusedMemory is how long a refused leaf is shown: an endpoint that presents one is probed
	// every five seconds, so without it the endpoint has got another.
	refusedMemory = 15 * time.Second
	// unreadTime is how long the former roots are trusted, at least, while a new reference has not
	// been read: the overlap may be shorter than reading takes. Some may never be read.
	unreadTime = time.Minute
)

// backend is the trust of one APIService's backend. It outlives the *registry.Backend values, which change with every
// caBundle. Or it is the trust shared by all users of one *registry.Backend, and then it keeps that one.
type backend struct {
	name    string // the APIService's; empty means shared
	of      *Trust
	current atomic.Pointer[view] // set by setLocked, keepLocked and apply

	// mu guards the fields below and changes of current. It is held for verification (some 100 µs), never for I/O.
	mu      sync.Mutex
	spec    *registry.Backend
	all     *backend // the shared trust of spec; nil means none, or that this is it
	overlap time.Duration
	moved   bool   // to another Service, or to URLs of other hosts, whose roots are not known yet
	source  string // "inline", "system", "none" or "configmap <name>/<key>"
	inForce bool   // a live chain needed replaced roots
	ended   bool   // the APIService was deleted
	guards  map[*guarded]struct{}
	leaves  map[[sha256.Size]byte]leaf
	users   map[string]struct{} // of a shared trust: the APIServices that have spec
	counted string              // the APIService for which refusals are counted: one of users, else name
}

// leaf is what is shown of a certificate that an endpoint presented: parsed, that may take 80 times what was sent.
type leaf struct {
	Certificate
	root identity
	seen time.Time
}

type guarded struct {
	chain   []*x509.Certificate
	until   time.Time     // when to check the chain again. Zero means only when the view changes
	expired bool          // only time has ended its validity, at until
	lost    chan struct{} // one slot, for that; closed once, by who deletes it from guards. See Trust.Guard
}

func (t *Trust) newBackend(name string) *backend {
	b := &backend{
		name: name, counted: name, of: t, guards: make(map[*guarded]struct{}),
		leaves: make(map[[sha256.Size]byte]leaf), users: make(map[string]struct{}),
	}
	b.current.Store(&view{fault: refuse(reasonInvalidBundle, nil, "the CA bundle has not been read yet")})
	return b
}

// apply takes a backend, and the shared trust of spec, with its parsed bundle. A reference's comes by referenced.
func (b *backend) apply(spec *registry.Backend, overlap time.Duration, all *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if v := *b.current.Load(); overlap < b.overlap && len(v.previous) > 0 { // for what was replaced before, too
		kept := slices.Clone(v.previous)
		for i := range kept {
			kept[i].lasts = min(kept[i].lasts, overlap)
		}
		b.keepLocked(v, live(kept, now))
		b.recheckLocked(now, true)
	}
	b.overlap, b.all = overlap, all
	if b.spec == spec {
		return
	}
	before := b.spec
	b.spec, b.moved = spec, b.moved || before != nil && (!before.SameService(spec) || spec.URLs != "" &&
		!sets.New(strings.Split(before.ServerName, ",")...).HasAny(strings.Split(spec.ServerName, ",")...))
	v := *b.current.Load()
	v.name = spec.ServerName
	b.current.Store(&v)
	switch {
	case spec.Insecure:
		b.source = "none"
		if !v.insecure {
			b.setLocked(&view{name: v.name, insecure: true, changed: now})
		}
	case spec.CAFrom != "":
		b.source = "configmap " + spec.Namespace + "/" + spec.CAFrom
		if ref, _ := spec.Reference(); ref.Namespace == "" {
			b.source = "clustertrustbundle " + ref.Name
		}
		if v.insecure || before != nil && (before.CAFrom != spec.CAFrom || before.Namespace != spec.Namespace) {
			// The present roots are another source's. If nothing was verified, there are none.
			unread := refuse(reasonInvalidBundle, nil, "%s has not been read yet", b.source)
			b.setLocked(v.with(nil, unread, max(b.overlap, unreadTime), now))
		}
	default:
		b.source = map[bool]string{true: "system", false: "inline"}[spec.CABundle == ""]
		if all == nil {
			b.takeLocked(b.readLocked([]byte(spec.CABundle), nil), now)
			break
		}
		b.takeLocked(all.current.Load(), now)
	}
	if v := *b.current.Load(); b.moved { // its roots may be those of the former
		b.setLocked(&v)
	}
	b.recheckLocked(now, true)
}

// referenced takes the bundle of spec's reference, or the error that there is none, unless the reference has changed.
// read is what another who refers to it has read. Nil: nobody has. It is returned for the next.
func (b *backend) referenced(spec *registry.Backend, data []byte, err error, read *view) *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spec != spec || b.ended {
		return read
	}
	now, before := time.Now(), b.current.Load()
	if read == nil {
		read = b.readLocked(data, err)
	}
	b.takeLocked(read, now)
	if b.current.Load() != before {
		b.recheckLocked(now, true)
		b.of.cfg.Renewed(b.name)
	}
	return read
}

// readLocked reads the backend's bundle. Empty data without err means the system's roots.
func (b *backend) readLocked(data []byte, err error) *view {
	if err != nil {
		return &view{fault: refuse(reasonInvalidBundle, err, "reading the CA bundle from %s: %v", b.source, err)}
	}
	return readRoots(data, " ("+b.source+")")
}

// takeLocked sets the backend's roots to those read, or to none if there is a fault.
func (b *backend) takeLocked(read *view, now time.Time) {
	v, next, fault := b.current.Load(), read.current, read.fault
	if fault != nil && v.fault != nil && fault.Message == v.fault.Message ||
		next != nil && v.current != nil && v.current.same(next) {
		return
	}
	b.setLocked(v.with(next, fault, b.overlap, now))
	b.of.reloaded(b.name, b.source, fault, next)
}

func (b *backend) setLocked(v *view) {
	if b.moved && v.current != nil { // nobody has v yet. Whoever signs for the former server must not for this one
		v.previous, b.moved = nil, false
	}
	b.inForce = false
	b.current.Store(v)
}

// handshake verifies a new connection's chain. It is not empty: crypto/tls has refused that.
func (b *backend) handshake(chain []*x509.Certificate) error {
	now, v := time.Now(), b.current.Load()
	got, old, err := v.verify(chain, now)
	b.of.metrics.count(chain, err)
	l := leaf{Certificate: Describe(chain[0]), seen: now}
	l.Refused = err != nil
	if got.root != nil {
		l.root = identify(got.root)
	}
	defer b.of.logSaid()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seenLocked(chain[0], l)
	if c := got.first; c != nil && c != chain[0] && c != got.root { // an intermediate ends before both
		b.seenLocked(c, leaf{Certificate: Describe(c), root: l.root, seen: now})
	}
	if err != nil {
		if b.counted != "" { // else no APIService has the Backend any more; the prober logs the resulting verdict
			b.of.metrics.refusals.WithLabelValues(b.counted, err.Reason()).Inc()
		}
		return err
	}
	if b.current.Load() != v {
		// The trust changed during verification: the current one decides.
		if got, old, err = b.current.Load().verify(chain, now); err != nil {
			return err
		}
	}
	switch v := b.current.Load(); {
	case old && !b.inForce:
		b.inForce = true
		b.of.say(b.of.cfg.Logger.Warn, "backend still needs the replaced bundle",
			"apiservice", b.name, "until", got.until)
	case !old && len(v.previous) > 0:
		b.keepLocked(*v, nil) // an endpoint has shown a chain of the new roots
		b.recheckLocked(now, true)
	}
	return nil
}

// count counts for upstream's two counters, here by handshake: a connection presents one certificate.
func (m *metrics) count(chain []*x509.Certificate, err *Error) {
	if !hasSAN(chain[0]) {
		m.missingSAN.Inc()
	}
	if err != nil && err.Reason() == reasonInsecureSHA1 || usesSHA1(chain) {
		m.sha1.Inc()
	}
}

func (b *backend) seenLocked(c *x509.Certificate, l leaf) {
	if b.leaves[sha256.Sum256(c.Raw)] = l; len(b.leaves) <= maxLeaves {
		return
	}
	n := make(map[identity]int) // by root: who removes a CA looks whether it still has any
	for _, l := range b.leaves {
		n[l.root]++
	}
	delete(b.leaves, slices.MinFunc(slices.Collect(maps.Keys(b.leaves)), func(x, y [sha256.Size]byte) int {
		return cmp.Or(n[b.leaves[y].root]-n[b.leaves[x].root], b.leaves[x].seen.Compare(b.leaves[y].seen))
	}))
}

// keepLocked ends the trust in all replaced roots but some.
func (b *backend) keepLocked(v view, some []replaced) {
	v.previous = some
	b.current.Store(&v)
	if len(some) == 0 {
		b.inForce = false
		b.of.say(b.of.cfg.Logger.Info, "replaced bundle no longer trusted", "apiservice", b.name)
	}
}

func (b *backend) guard(chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	g := &guarded{chain: chain, until: chain[0].NotAfter, lost: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		close(g.lost)
	} else {
		b.guards[g] = struct{}{}
		b.checkLocked(g, time.Now())
	}
	return g.lost, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.guards, g)
	}
}

// unused reports whether no APIService has spec, and no connection that was verified here is open.
func (b *backend) unused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.users)+len(b.guards) == 0
}

// recheckLocked checks guards: all when the view has changed, else those due. Others' dials may wait for it. So
// if it takes far longer than real chains, 0.1 ms each, the rest are lost: a bundle can make one cost 100 signatures.
func (b *backend) recheckLocked(now time.Time, all bool) {
	end := time.Now().Add(time.Second / 4)
	for g := range b.guards {
		if !all && (g.expired || g.until.IsZero() || now.Before(g.until)) {
			continue
		}
		if end = end.Add(2 * time.Millisecond); time.Now().After(end) {
			delete(b.guards, g)
			close(g.lost)
			continue
		}
		b.checkLocked(g, now)
	}
}

// checkLocked ends a guard whose chain the current view does not verify, nor would have before it expired: who has been
// let in stays while the CA is trusted.
func (b *backend) checkLocked(g *guarded, now time.Time) {
	v := b.current.Load()
	got, _, err := v.verify(g.chain, now)
	if err == nil {
		g.until, g.expired = got.until, false
		return
	}
	if now.After(g.until) {
		if _, _, err = v.verify(g.chain, g.until); err == nil || err.Reason() == reasonNotYetValid { // by a renewed CA
			g.expired = true
			latest.Wake(g.lost)
			return
		}
	}
	delete(b.guards, g)
	close(g.lost)
}

func (b *backend) join(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.users[name] = struct{}{}
	b.counted = cmp.Or(b.counted, name)
}

func (b *backend) leave(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.users, name)
	if b.counted == name {
		b.counted = cmp.Or(slices.Collect(maps.Keys(b.users))...) // any other
	}
}

// end closes every guard: the APIService was deleted, and so its trust ends, and its series.
func (b *backend) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended, b.counted = true, ""
	for g := range b.guards {
		delete(b.guards, g)
		close(g.lost)
	}
}

// tick ends what has expired: replaced roots, guarded chains, leaves not seen for long.
func (b *backend) tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.current.Load()
	if kept := live(v.previous, now); len(kept) < len(v.previous) {
		b.keepLocked(*v, kept)
		b.recheckLocked(now, true)
	}
	b.recheckLocked(now, false)
	maps.DeleteFunc(b.leaves, func(_ [sha256.Size]byte, l leaf) bool { return now.Sub(l.seen) > leafMemory })
}
