package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/certs/trust"
)

// Clients verifies the certificates that clients present. All methods may be called at any time by any goroutine.
type Clients struct {
	allowed []string // from the flags
	files   struct{ client, proxy bool }

	// current is what is in force.
	current atomic.Pointer[clientTrust]
	headers atomic.Pointer[RequestHeaders]

	// mu guards the candidates: what was read last, which is in force only when the whole passes check.
	mu        sync.Mutex
	candidate clientTrust
	refusal   error
	changed   func() // told after every swap
}

// clientTrust is one generation of what clients are trusted by. It is immutable once in force.
type clientTrust struct {
	generation    uint64
	client, proxy []*x509.Certificate
	// allowed are the common names that may be front proxies. Empty: every certificate of the CA.
	allowed []string

	clientPool, proxyPool, union *x509.CertPool
}

// Generation counts what clients were trusted by. Whatever was concluded under another one must be concluded anew.
func (c *Clients) Generation() uint64 { return c.current.Load().generation }

// Headers are the names in the cluster's authentication ConfigMap, nil while it has not been read.
func (c *Clients) Headers() *RequestHeaders { return c.headers.Load() }

// VerifyUser verifies what a peer presented, leaf first, against the client CA and returns the chains found. No chain and no error: there is no client CA
// now, or nothing was presented.
//
// The result holds until the earliest NotAfter in the chains and for this Generation; whoever keeps it reads the Generation before the call.
func (c *Clients) VerifyUser(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	chains, err := verify(peer, c.current.Load().clientPool)
	if err != nil {
		return nil, fmt.Errorf("verifying client certificate: %w", err)
	}
	return chains, nil
}

// VerifyFrontProxy does the same against the request-header CA and checks that the leaf's common name is among the allowed ones: such a peer may assert X-Remote-*.
func (c *Clients) VerifyFrontProxy(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	t := c.current.Load()
	chains, err := verify(peer, t.proxyPool)
	if err == nil && len(chains) > 0 && len(t.allowed) > 0 && !slices.Contains(t.allowed, peer[0].Subject.CommonName) {
		err = errors.New("its common name is not among the allowed names")
	}
	if err != nil {
		return nil, fmt.Errorf("verifying front proxy certificate: %w", err)
	}
	return chains, nil
}

func verify(peer []*x509.Certificate, pool *x509.CertPool) ([][]*x509.Certificate, error) {
	if pool == nil || len(peer) == 0 {
		// To crypto/x509 a nil pool would mean the system's roots.
		return nil, nil
	}
	if err := trust.Bounded(peer); err != nil {
		return nil, err //nolint:wrapcheck // the callers say what was being done
	}
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range peer[1:] {
		opts.Intermediates.AddCert(c)
	}
	return peer[0].Verify(opts)
}

// update edits the candidate and puts it in force if it passes. Otherwise what was in force stays, and so does the candidate: another change may mend it.
func (c *Clients) update(edit func(*clientTrust)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	edit(&c.candidate)
	next := c.candidate
	if len(c.allowed) > 0 || c.files.proxy {
		next.allowed = c.allowed
	}
	if c.refusal = next.check(); c.refusal != nil {
		return c.refusal
	}
	next.generation = c.current.Load().generation + 1
	next.clientPool, next.proxyPool = pool(next.client), pool(next.proxy)
	next.union = pool(slices.Concat(next.client, next.proxy))
	c.current.Store(&next)
	c.changed()
	return nil
}

// errShared is the rule of kube-apiserver's own flags, held at every reload here: with one CA for users and for front proxies, and any name allowed, every user could
// assert to be any other.
var errShared = errors.New("the client CA and the request-header CA share a certificate or issue each other; that needs --requestheader-allowed-names")

func (t *clientTrust) check() error {
	if len(t.allowed) > 0 {
		return nil
	}
	for _, c := range t.client {
		if sharesKey(c, t.proxy) || issued(c, t.proxy) {
			return fmt.Errorf("%w (%q)", errShared, trust.Describe(c).Subject)
		}
	}
	return nil
}

// sharesKey reports whether c, or the same CA in another certificate, is in the bundle.
func sharesKey(c *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(o *x509.Certificate) bool {
		return c.Equal(o) || bytes.Equal(c.RawSubject, o.RawSubject) && bytes.Equal(c.RawSubjectPublicKeyInfo, o.RawSubjectPublicKeyInfo)
	})
}

// issued reports whether a request-header CA signed the client CA c: then a user who sends c along as an intermediate has a chain to the request-header CA. Dates do not
// matter: what has expired may be renewed.
func issued(c *x509.Certificate, bundle []*x509.Certificate) bool {
	return slices.ContainsFunc(bundle, func(o *x509.Certificate) bool {
		return bytes.Equal(c.RawIssuer, o.RawSubject) && c.CheckSignatureFrom(o) == nil
	})
}

// pool is nil for no certificate at all, which verifies nobody.
func pool(certs []*x509.Certificate) *x509.CertPool {
	if len(certs) == 0 {
		return nil
	}
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}
