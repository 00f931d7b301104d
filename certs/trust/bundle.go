package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"slices"
)

// identity identifies a CA by its subject and its key. A renewed CA certificate keeps both.
type identity [sha256.Size]byte

func identify(c *x509.Certificate) identity {
	h := sha256.New()
	// The DER of both is self-delimiting, so no separator is needed.
	h.Write(c.RawSubject)
	h.Write(c.RawSubjectPublicKeyInfo)
	return identity(h.Sum(nil))
}

// roots is one immutable set of trust anchors. The zero roots stand for the system's, which an
// empty caBundle means.
type roots struct {
	certs []*x509.Certificate
	ids   map[identity]bool
	// pool is nil for the system's roots.
	pool *x509.CertPool
	// warning says which part of the bundle was unreadable. Empty means none.
	warning string
}

func newRoots(certs []*x509.Certificate) *roots {
	r := &roots{certs: certs, ids: make(map[identity]bool, len(certs)), pool: x509.NewCertPool()}
	for _, c := range certs {
		r.ids[identify(c)] = true
		r.pool.AddCert(c)
	}
	return r
}

func (r *roots) system() bool { return r.pool == nil }

// same reports whether both have exactly the same certificates, and ignored the same part of the
// bundle.
func (r *roots) same(o *roots) bool {
	return r.system() == o.system() && r.warning == o.warning && slices.EqualFunc(r.certs, o.certs, (*x509.Certificate).Equal)
}

// shares reports whether both have a CA in common: then the newer one is an edit of the older, not
// its replacement. The system's roots are not listed, and share none.
func (r *roots) shares(o *roots) bool {
	for id := range r.ids {
		if o.ids[id] {
			return true
		}
	}
	return false
}

// without returns r without the CAs in drop, nil when none is left.
func (r *roots) without(drop map[identity]bool) *roots {
	if r.system() {
		return r
	}
	left := slices.DeleteFunc(slices.Clone(r.certs), func(c *x509.Certificate) bool { return drop[identify(c)] })
	switch len(left) {
	case 0:
		return nil
	case len(r.certs):
		return r
	}
	return newRoots(left)
}
