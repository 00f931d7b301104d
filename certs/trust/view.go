package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// view is the trust of one backend at one moment. It is immutable; every change makes a new view.
type view struct {
	name     string     // verified against the leaf
	anyName  bool       // the name is crypto/tls's part: each address of the local apiserver may have another
	insecure bool       // accept any certificates that are not too large
	current  *roots     // to verify with. Nil means none, and fault says why
	fault    *Error     // why the newest bundle cannot be used. Nil means that it can
	previous []replaced // replaced roots that are still trusted, oldest first
	changed  time.Time  // when current was set
}

type replaced struct {
	roots *roots
	since time.Time
	lasts time.Duration // their overlap
}

func (p replaced) until() time.Time { return p.since.Add(p.lasts) }

// verify checks a chain at now. old says that only replaced roots verified it.
func (v *view) verify(chain []*x509.Certificate, now time.Time) (got verified, old bool, err *Error) {
	if heavy := Light(chain, maxSize); heavy != nil {
		return verified{}, false, refuse(reasonInvalidCertificate, nil, "the server presented %v", heavy)
	}
	if v.insecure {
		return verified{}, false, nil
	}
	if v.current != nil {
		if got, err = v.against(v.current, chain, now); err == nil {
			return got, false, nil
		}
	} else if err = v.fault; err == nil { // no such view is made; without roots nobody is trusted
		err = refuse(reasonInvalidBundle, nil, "there is no CA bundle")
	}
	for _, p := range slices.Backward(live(v.previous, now)) {
		if got, olderr := v.against(p.roots, chain, now); olderr == nil {
			if p.until().Before(got.until) {
				got.until = p.until()
			}
			return got, true, nil
		}
	}
	return verified{}, false, err
}

// with returns the view after the bundle became next, or unreadable (next nil). The overlap begins.
func (v *view) with(next *roots, fault *Error, overlap time.Duration, now time.Time) *view {
	n := *v
	n.insecure, n.current, n.fault, n.changed = false, next, fault, now
	n.previous = live(v.previous, now)
	old := v.current
	renewed := func(c *x509.Certificate) bool { // a server may present it itself, or its successor be valid later
		return next.ids.Has(identify(c)) && !next.whole.Has(sha256.Sum256(c.Raw))
	}
	switch {
	case old == nil:
		// The last good roots are in previous, until the end set when the fault came. If the repaired bundle drops some
		// of their CAs, it is as if there had been no fault. "Verify nothing" never overlaps.
		for _, p := range n.previous {
			if next != nil && p.roots.shares(next) {
				n.previous = drop(n.previous, p.roots.ids, renewed)
			}
		}
	case next != nil && old.shares(next):
		n.previous = drop(n.previous, old.ids, renewed)
		if r := old.only(renewed); r != nil {
			n.previous = append(n.previous, replaced{r, now, overlap})
		}
	default:
		n.previous = append(n.previous, replaced{old, now, overlap})
	}
	if overlap <= 0 {
		n.previous = nil
	}
	const maxPrevious = 4 // replaced roots are kept: more within one overlap are a flapping installer, no rotation
	n.previous = n.previous[max(0, len(n.previous)-maxPrevious):]
	return &n
}

// overlapUntil returns when the last replaced roots stop being trusted. Zero means none.
func (v *view) overlapUntil(now time.Time) (until time.Time) {
	if all := live(v.previous, now); len(all) > 0 {
		until = slices.MaxFunc(all, func(a, b replaced) int { return a.until().Compare(b.until()) }).until()
	}
	return until
}

// live returns a copy of the replaced roots that have not expired.
func live(previous []replaced, now time.Time) []replaced {
	return slices.DeleteFunc(slices.Clone(previous), func(p replaced) bool { return !now.Before(p.until()) })
}

// drop removes an edited bundle's CAs from replaced roots, but those that it renews: it has the others still trusted.
func drop(previous []replaced, ids sets.Set[identity], renewed func(*x509.Certificate) bool) (left []replaced) {
	kept := func(c *x509.Certificate) bool { return !ids.Has(identify(c)) || renewed(c) }
	for _, p := range previous {
		if r := p.roots.only(kept); r != nil {
			left = append(left, replaced{r, p.since, p.lasts})
		}
	}
	return left
}

// identity identifies a CA by its subject and its key. A renewed CA certificate keeps both.
type identity [sha256.Size]byte

func identify(c *x509.Certificate) identity {
	h := sha256.New()
	h.Write(c.RawSubject) // the DER of both is self-delimiting, so no separator is needed
	h.Write(c.RawSubjectPublicKeyInfo)
	return identity(h.Sum(nil))
}

// roots is an immutable set of trust anchors. Zero are the system's, which an empty caBundle means.
type roots struct {
	certs   []*x509.Certificate
	ids     sets.Set[identity]
	whole   sets.Set[identity] // hashes of certs
	pool    *x509.CertPool     // nil for the system's roots
	warning string             // which part of the bundle was unreadable. Empty means none
}

func newRoots(certs []*x509.Certificate) *roots {
	r := &roots{certs: certs, ids: sets.New[identity](), whole: sets.New[identity](), pool: x509.NewCertPool()}
	for _, c := range certs {
		r.ids.Insert(identify(c))
		r.whole.Insert(sha256.Sum256(c.Raw))
		r.pool.AddCert(c)
	}
	return r
}

// readRoots returns a view of the roots in a bundle, the system's if that is empty, or of the fault.
func readRoots(data []byte, from string) *view {
	if len(data) == 0 {
		return &view{current: &roots{}}
	}
	certs, err := bundle.Parse(data)
	if len(certs) == 0 {
		return &view{fault: refuse(
			reasonInvalidBundle, err, "the CA bundle%s holds no readable certificate: %v", from, err)}
	}
	r := newRoots(certs)
	if err != nil {
		r.warning = err.Error()
	}
	return &view{current: r}
}

func (r *roots) system() bool { return r.pool == nil }

// same reports whether both have the same certificates, and ignored the same part of the bundle.
func (r *roots) same(o *roots) bool {
	return r.system() == o.system() && r.warning == o.warning &&
		slices.EqualFunc(r.certs, o.certs, (*x509.Certificate).Equal)
}

// shares reports whether both have a CA in common: then the newer one is an edit of the older, not
// its replacement. The system's roots are not listed, and share none.
func (r *roots) shares(o *roots) bool { return r.ids.Intersection(o.ids).Len() > 0 }

// only returns r with the CAs that are to be kept, nil when none is left.
func (r *roots) only(kept func(*x509.Certificate) bool) *roots {
	if r.system() {
		return r
	}
	left := slices.DeleteFunc(slices.Clone(r.certs), func(c *x509.Certificate) bool { return !kept(c) })
	if len(left) == 0 {
		return nil
	}
	return newRoots(left)
}
