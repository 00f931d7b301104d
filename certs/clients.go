package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// Clients verifies the certificates that clients present. All methods are safe for concurrent use.
type Clients struct {
	cfg     Config
	current atomic.Pointer[clientTrust] // the generation in force
	headers atomic.Pointer[requestHeaders]
	cluster atomic.Pointer[clientTrust] // of the cluster's own servers, by the ConfigMap; only of front proxies
	known   atomic.Bool                 // set after headers and CAs: the ConfigMap was read, or is found not to exist

	// mu guards the candidate: what was read last. It is put in force only if the whole passes check.
	mu        sync.Mutex
	candidate clientTrust
	refusal   error
	changed   func() // Store.rebuild, called after every swap
}

// clientTrust is one generation of CAs that clients are verified by. It is immutable once in force.
type clientTrust struct {
	generation    uint64
	client, proxy []*x509.Certificate
	allowed       []string // the common names that front proxies may have. Empty means any that the CA signed

	clientPool, proxyPool, union *x509.CertPool
}

// Generation counts the changes of client trust. Results of another generation must be verified again.
func (c *Clients) Generation() uint64 { return c.current.Load().generation }

// Headers returns the header names in the cluster's authentication ConfigMap, nil if there is none. Known: it was read.
func (c *Clients) Headers() (names *HeaderNames, known bool) {
	known = c.known.Load() // before the names: those that are known are loaded
	if h := c.headers.Load(); h != nil {
		names = &h.HeaderNames
	}
	return names, known
}

// VerifyUser verifies a peer's certificates, leaf first, against the client CA and returns the
// chains found. No chain and no error means that there is no client CA now, or no certificate.
//
// The result holds until the earliest NotAfter of the chains, and for the Generation that was read before the call.
func (c *Clients) VerifyUser(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	chains, err := verify(peer, c.current.Load().clientPool)
	if err != nil {
		return nil, fmt.Errorf("verifying client certificate: %w", err)
	}
	return chains, nil
}

// VerifyFrontProxy does what VerifyUser does, against the request-header CA, and checks that the
// leaf's common name is among the allowed ones. Such a peer may assert X-Remote-*.
func (c *Clients) VerifyFrontProxy(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	return c.current.Load().verifyFrontProxy(peer)
}

// VerifyInCluster does what VerifyFrontProxy does, as the cluster's servers do by its authentication ConfigMap. No
// chain and no error means that it is not known, or that only the certificate's own dates are wrong.
func (c *Clients) VerifyInCluster(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	chains, err := c.cluster.Load().verifyFrontProxy(peer)
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		if err = nil; invalid.Cert != peer[0] { // one text, as often as it is asked: crypto/x509's has the time
			err = fmt.Errorf("the CA %q above it is not valid now", trust.Describe(invalid.Cert).Subject)
		}
	}
	return chains, err
}

func (t *clientTrust) verifyFrontProxy(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	chains, err := verify(peer, t.proxyPool)
	if err == nil && len(chains) > 0 && len(t.allowed) > 0 && !slices.Contains(t.allowed, peer[0].Subject.CommonName) {
		err = errors.New("its common name is not among the allowed names")
	}
	if err != nil {
		return nil, fmt.Errorf("verifying front proxy certificate: %w", err)
	}
	return chains, nil
}

func verify(peer []*x509.Certificate, roots *x509.CertPool) ([][]*x509.Certificate, error) {
	if roots == nil || len(peer) == 0 {
		return nil, nil // in crypto/x509 a nil pool would mean the system's roots
	}
	if err := trust.Bounded(peer); err != nil {
		return nil, err //nolint:wrapcheck // the callers wrap it
	}
	return peer[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: bundle.Pool(peer[1:]), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// update edits the candidate and puts it in force if it passes. Otherwise the former trust stays in
// force. The candidate is kept: a change of the other bundle may cure it.
func (c *Clients) update(edit func(*clientTrust)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	edit(&c.candidate)
	next := c.candidate
	if len(c.cfg.AllowedNames) > 0 {
		next.allowed = c.cfg.AllowedNames
	}
	if c.refusal = next.check(); c.refusal != nil {
		return c.refusal
	}
	next.generation = c.current.Load().generation + 1
	next.clientPool, next.proxyPool = bundle.Pool(next.client), bundle.Pool(next.proxy)
	next.union = bundle.Pool(slices.Concat(next.client, next.proxy))
	c.current.Store(&next)
	c.changed()
	c.known.CompareAndSwap(false, next.client != nil && c.headers.Load() != nil) // a file may have cured the ConfigMap
	return nil
}

// errShared is the rule of kube-apiserver's own flags, checked here at every reload: with one CA
// for users and for front proxies, and any name allowed, every user could impersonate every other.
var errShared = errors.New("the client CA and the request-header CA share a certificate or issue each other; " +
	"that needs --requestheader-allowed-names")

func (t *clientTrust) check() error {
	if len(t.allowed) > 0 {
		return nil
	}
	for _, c := range t.client {
		for _, o := range t.proxy {
			// The same CA may be in another certificate.
			shared := c.Equal(o) || bytes.Equal(c.RawSubject, o.RawSubject) &&
				bytes.Equal(c.RawSubjectPublicKeyInfo, o.RawSubjectPublicKeyInfo)
			// If a request-header CA signed the client CA c, a user who presents c as an intermediate has a chain to
			// the request-header CA. Dates do not matter: an expired CA may be renewed.
			if shared || bytes.Equal(c.RawIssuer, o.RawSubject) && c.CheckSignatureFrom(o) == nil {
				return fmt.Errorf("%w (%q)", errShared, trust.Describe(c).Subject)
			}
		}
	}
	return nil
}

// HeaderNames are the header names in the cluster's authentication ConfigMap, which extension servers trust.
type HeaderNames struct {
	// Username, UID and Group are header names in order of preference. Nil means that the ConfigMap has none.
	Username, UID, Group []string
	ExtraPrefix          []string // prefixes of header names
}

// requestHeaders are what the ConfigMap says about front proxies.
type requestHeaders struct {
	HeaderNames
	allowedNames []string // that may send them. Empty means any that the CA signed
}

// takeConfigMap takes the cluster's authentication ConfigMap: its header names always, its CAs only
// if trusted, and where no file gives one. Deleting the ConfigMap, or removing a CA from it, ends
// that trust (kubernetes/kubernetes#140130 is about a server that went on).
func (c *Clients) takeConfigMap(data map[string][]byte, err error) (refused error) {
	var h requestHeaders
	if err == nil { // it exists
		if h, err = parseHeaders(data); err != nil {
			return err
		}
		// The pointer changes only with the names: caches of identities use it as a key.
		if old := c.headers.Load(); old == nil || !reflect.DeepEqual(*old, h) {
			c.headers.Store(&h)
		}
	}
	// After the CAs, and not while there are none but refused ones: a certificate would count as none.
	defer func() { c.known.CompareAndSwap(false, refused == nil || c.current.Load().client != nil) }()
	proxy, faulty := optionalBundle(data["requestheader-client-ca-file"])
	c.cluster.Store(&clientTrust{proxyPool: bundle.Pool(proxy), allowed: h.allowedNames})
	if !c.cfg.TrustConfigMap {
		return nil
	}
	client, err := optionalBundle(data["client-ca-file"])
	if err != nil {
		return fmt.Errorf("parsing client-ca-file: %w", err)
	}
	if faulty != nil {
		return fmt.Errorf("parsing requestheader-client-ca-file: %w", faulty)
	}
	return c.update(func(t *clientTrust) {
		if c.cfg.ClientCA == "" {
			t.client = client
		}
		if c.cfg.RequestHeaderCA == "" {
			t.proxy, t.allowed = proxy, h.allowedNames
		}
	})
}

func optionalBundle(data []byte) ([]*x509.Certificate, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	return bundle.Parse(data)
}

func parseHeaders(data map[string][]byte) (requestHeaders, error) {
	var h requestHeaders
	for key, to := range map[string]*[]string{
		"requestheader-username-headers":     &h.Username,
		"requestheader-uid-headers":          &h.UID,
		"requestheader-group-headers":        &h.Group,
		"requestheader-extra-headers-prefix": &h.ExtraPrefix,
		"requestheader-allowed-names":        &h.allowedNames,
	} {
		if err := json.Unmarshal(data[key], to); err != nil && len(data[key]) > 0 {
			return requestHeaders{}, fmt.Errorf("parsing %s: %w", key, err)
		}
	}
	return h, nil
}
