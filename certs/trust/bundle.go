package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// maxBundle bounds a bundle. etcd refuses objects above 1.5 MiB, and a bundle of every public CA
// has a quarter of this.
const maxBundle = 1 << 20

// ParseBundle parses the certificates of a PEM bundle. Like kube-apiserver, it ignores blocks of
// other types and text between blocks.
//
// When some blocks are unreadable it returns the readable certificates together with an error. A
// caller that reads a file must then refuse the whole: a half-written file looks like this. A
// caller that reads an API object, which is written as a whole, may use the readable part, as
// kube-aggregator does. If there is no certificate, the error is never nil.
func ParseBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("reading bundle: %d bytes, more than %d", len(data), maxBundle)
	}
	// pem.Decode silently skips a broken block, so count the opening lines first and compare.
	begun := bytes.Count(data, []byte("-----BEGIN CERTIFICATE-----"))
	var certs []*x509.Certificate
	var errs []error
	blocks, unread := 0, 0
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		blocks++
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			if unread++; unread <= maxNamed {
				errs = append(errs, fmt.Errorf("parsing certificate %d: %w", blocks, err))
			}
			continue
		}
		certs = append(certs, c)
	}
	if unread > maxNamed {
		errs = append(errs, fmt.Errorf("parsing %d more certificates failed, too", unread-maxNamed))
	}
	if blocks < begun {
		errs = append(errs, fmt.Errorf("reading bundle: %d of %d certificates are broken or cut short", begun-blocks, begun))
	}
	if len(certs) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("reading bundle: no PEM certificate in it"))
	}
	return certs, errors.Join(errs...)
}

// maxNamed bounds the unreadable certificates that an error names: a bundle has room for 17,000,
// and anyone who may write an APIService could put them all into log, verdict and status.
const maxNamed = 3

// identity identifies a CA by its subject and its key. A renewed CA certificate keeps both.
type identity [sha256.Size]byte

func identify(c *x509.Certificate) identity {
	h := sha256.New()
	// The DER of both is self-delimiting, so no separator is needed.
	h.Write(c.RawSubject)
	h.Write(c.RawSubjectPublicKeyInfo)
	return identity(h.Sum(nil))
}

// roots is one immutable set of trust anchors.
type roots struct {
	certs []*x509.Certificate
	ids   map[identity]bool
	// pool is nil for the system's roots.
	pool *x509.CertPool
	// warning says which part of the bundle was unreadable. Empty means none.
	warning string
}

// systemRoots stands for the system's roots, which an empty caBundle means.
func systemRoots() *roots { return &roots{} }

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
