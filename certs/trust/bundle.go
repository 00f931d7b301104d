package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxBundle bounds a bundle. etcd refuses objects above 1.5 MiB, and a bundle of every public CA has a quarter of this.
const maxBundle = 1 << 20

// ParseBundle reads the certificates of a PEM bundle. Blocks of other types and text between blocks are passed over, as kube-apiserver does.
//
// When some blocks are unreadable it returns the readable certificates together with an error. A caller that reads a file must then refuse the whole: a half-written file
// looks just like this. A caller that reads an API object, which is written at once or not at all, may use what is there, as kube-aggregator does.
// The error is never nil when no certificate was found.
func ParseBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("reading bundle: %d bytes, more than %d", len(data), maxBundle)
	}
	// pem.Decode passes over a broken block without a word, so the openings are counted first and compared.
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
			if unread++; unread <= maxTold {
				errs = append(errs, fmt.Errorf("parsing certificate %d: %w", blocks, err))
			}
			continue
		}
		certs = append(certs, c)
	}
	if unread > maxTold {
		errs = append(errs, fmt.Errorf("parsing %d more certificates failed, too", unread-maxTold))
	}
	if blocks < begun {
		errs = append(errs, fmt.Errorf("reading bundle: %d of %d certificates are broken or cut short", begun-blocks, begun))
	}
	if len(certs) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("reading bundle: no PEM certificate in it"))
	}
	return certs, errors.Join(errs...)
}

// maxTold bounds the unreadable certificates that an error names: a bundle has room for 17,000, and whoever may write an APIService would have them all in log, verdict
// and status.
const maxTold = 3

// identity is what makes a CA the same CA: its subject and its key. A renewed CA certificate keeps both.
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
	// digest is of the certificates in their order.
	digest [sha256.Size]byte
	// warning says which part of the bundle was unreadable. Empty: none.
	warning string
}

// systemRoots stands for the roots of the machine: what an empty caBundle means.
func systemRoots() *roots { return &roots{} }

func newRoots(certs []*x509.Certificate) *roots {
	r := &roots{certs: certs, ids: make(map[identity]bool, len(certs)), pool: x509.NewCertPool()}
	h := sha256.New()
	for _, c := range certs {
		r.ids[identify(c)] = true
		r.pool.AddCert(c)
		h.Write(c.Raw) // DER is self-delimiting
	}
	r.digest = [sha256.Size]byte(h.Sum(nil))
	return r
}

func (r *roots) system() bool { return r.pool == nil }

// same reports whether both hold exactly the same certificates.
func (r *roots) same(o *roots) bool {
	if r.system() != o.system() || len(r.certs) != len(o.certs) {
		return false
	}
	for i := range r.certs {
		if !r.certs[i].Equal(o.certs[i]) {
			return false
		}
	}
	return true
}

// shares reports whether a CA is in both: then the newer one is an edit of the older, not its replacement.
func (r *roots) shares(o *roots) bool {
	if r.system() || o.system() {
		return r.system() && o.system()
	}
	for id := range r.ids {
		if o.ids[id] {
			return true
		}
	}
	return false
}

// without returns r less the CAs that drop holds, nil when none is left.
func (r *roots) without(drop map[identity]bool) *roots {
	if r.system() || len(drop) == 0 {
		return r
	}
	var left []*x509.Certificate
	for _, c := range r.certs {
		if !drop[identify(c)] {
			left = append(left, c)
		}
	}
	switch len(left) {
	case 0:
		return nil
	case len(r.certs):
		return r
	}
	return newRoots(left)
}
