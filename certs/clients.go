package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
)

const (
	// maxChain bounds what a client may present: path building tries the combinations, and real chains have two to four.
	maxChain = 16
	// retryAfter is how long a refusal is believed. Only time can heal one while the CAs stay: a certificate that was not yet valid.
	retryAfter = time.Minute
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

// Verdict is what a chain of certificates was found to be. It is immutable.
type Verdict struct {
	// User is the leaf, when the client CA vouches for it. Nil: it does not.
	User *x509.Certificate
	// UserErr is why not. Nil: it does, or no certificate was presented.
	UserErr error
	// FrontProxy tells that the request-header CA vouches for the leaf and that its common name is allowed: the peer may assert X-Remote-*.
	FrontProxy bool
	// FrontProxyErr is why not. Nil: it may, or no certificate was presented.
	FrontProxyErr error
	// Until is when the verdict ends: the earliest NotAfter of the chains that were verified. Zero: it holds as long as the generation.
	Until time.Time
	// Generation is that of the CAs that it was made with.
	Generation uint64

	leaf *x509.Certificate
}

// Generation counts what clients were trusted by. Whatever was concluded under another one must be concluded anew.
func (c *Clients) Generation() uint64 { return c.current.Load().generation }

// Headers are the names in the cluster's authentication ConfigMap, nil while it has not been read.
func (c *Clients) Headers() *RequestHeaders { return c.headers.Load() }

// Verify says what the chain that a connection's peer presented, leaf first, is worth now. slot belongs to the connection and keeps the verdict, so that the cryptography is
// done once for a connection and generation of CAs; nil keeps nothing. It never returns nil.
func (c *Clients) Verify(slot *atomic.Pointer[Verdict], chain []*x509.Certificate) *Verdict {
	t := c.current.Load()
	now := time.Now()
	var leaf *x509.Certificate
	if len(chain) > 0 {
		leaf = chain[0]
	}
	if slot != nil {
		// The leaf is compared as well: a slot that was handed from one connection to another must not hand on an identity.
		if v := slot.Load(); v != nil && v.Generation == t.generation && v.leaf == leaf && (v.Until.IsZero() || now.Before(v.Until)) {
			return v
		}
	}
	v := t.verify(chain, now)
	v.leaf = leaf
	if slot != nil {
		slot.Store(v)
	}
	return v
}

func (t *clientTrust) verify(chain []*x509.Certificate, now time.Time) *Verdict {
	v := &Verdict{Generation: t.generation}
	if len(chain) == 0 {
		return v
	}
	v.Until = now.Add(retryAfter)
	userUntil, err := verifyClient(chain, t.clientPool, now)
	if err != nil {
		v.UserErr = fmt.Errorf("verifying client certificate: %w", err)
	} else {
		v.User = chain[0]
	}
	proxyUntil, err := verifyClient(chain, t.proxyPool, now)
	if err == nil && len(t.allowed) > 0 && !slices.Contains(t.allowed, chain[0].Subject.CommonName) {
		err = errors.New("its common name is not among the allowed names")
	}
	if err != nil {
		v.FrontProxyErr = fmt.Errorf("verifying front proxy certificate: %w", err)
	} else {
		v.FrontProxy = true
	}
	switch {
	case v.User != nil && v.FrontProxy:
		v.Until = earlier(userUntil, proxyUntil)
	case v.User != nil:
		v.Until = earlier(userUntil, v.Until)
	case v.FrontProxy:
		v.Until = earlier(proxyUntil, v.Until)
	}
	return v
}

// verifyClient checks a chain and says until when it holds: the earliest NotAfter of the path that lasts longest.
func verifyClient(chain []*x509.Certificate, pool *x509.CertPool, now time.Time) (until time.Time, err error) {
	switch {
	case pool == nil:
		// A nil pool would mean the system's roots.
		return until, errors.New("no CA is configured")
	case len(chain) > maxChain:
		return until, fmt.Errorf("%d certificates, more than %d", len(chain), maxChain)
	}
	opts := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	paths, err := chain[0].Verify(opts)
	if err != nil {
		return until, err
	}
	for _, path := range paths {
		end := path[0].NotAfter
		for _, c := range path[1:] {
			end = earlier(end, c.NotAfter)
		}
		if end.After(until) {
			until = end
		}
	}
	return until, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
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
