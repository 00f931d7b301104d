package authn

import (
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Head is the fields of a request head in order, names in lower case. Pseudo-fields are ignored.
type Head []hpack.HeaderField

const fieldProtocol = "sec-websocket-protocol"

// Kind is the kind of the credentials that decide a request.
type Kind uint8

// The kinds. KindNone is the zero value: there are no credentials that kube-apiserver would use.
const (
	KindNone        Kind = iota
	KindFrontProxy       // a user asserted by a verified front proxy
	KindCertificate      // the user of a verified client certificate
	KindToken            // a bearer token, not yet reviewed. It decides even if a certificate came with it and failed
	// KindInvalid means that credentials failed and there are no others: 401, on either side.
	// Without its failed certificate the forwarded request would be anonymous.
	KindInvalid
	// KindIssued is a token that we verify ourselves and never forward. Read's caller sets it, after Issued and Cached.
	KindIssued
)

// Credentials are the credentials of a request.
type Credentials struct {
	Kind         Kind      // which credentials decide
	Impersonates bool      // there is a field with the prefix Impersonate-
	User         user.Info // set for KindFrontProxy, KindCertificate and KindIssued. Read-only
	Token        Token     // set for KindToken
	Payer        string    // identifies a proven token for bounds, however the token is written. Set by Pool
	// Now is when they were read, so that the clock, which is slow on virtual machines, is read
	// once per request. If zero, Read, Cached and Pool read it.
	Now time.Time

	second             Token // the WebSocket token beside a bearer token. It is tried if the first fails
	issued, alsoIssued bool  // the result of Config.Issued for both. Set by FindIssuer
	generation         uint64
}

// Same reports whether two Credentials are the same tokens.
func (c *Credentials) Same(other *Credentials) bool {
	return c.Kind == other.Kind && c.Token == other.Token && c.second == other.second
}

// Read returns the caller's credentials, as far as they can be checked without I/O. It reports false if the
// connection's certificates must be verified first. upgrade is the protocol to which the forwarded request will ask to
// switch, or empty: only a WebSocket upgrade carries a token in its subprotocols. It must match the forwarded request;
// otherwise a response could prove a token that was not forwarded. now is Credentials.Now.
func (a *Authenticator) Read(c *Conn, h Head, upgrade string, now time.Time) (Credentials, bool) {
	v, known := a.verdict(c, now)
	if !known {
		return Credentials{}, false
	}
	authorization, protocol, impersonates := scan(h)
	out := Credentials{Impersonates: impersonates, Now: now}
	if v != nil && v.front {
		if u := a.nameSet().read.user(h); u != nil {
			out.Kind, out.User = KindFrontProxy, u
			return out, true
		}
	}
	if v != nil && v.client != nil {
		out.Kind, out.User = KindCertificate, v.client
		return out, true
	}
	bearer := c.token(authorization)
	socket, err := "", error(nil)
	if protocol && strings.EqualFold(upgrade, "websocket") {
		socket, err = protocolToken(h) //fairlead:boundary upgrades come over HTTP/1.1, so not on a loop
	}
	switch {
	case strings.Contains(socket, " "): // a TokenReview sees what is before it, but kube-apiserver ignores it in a JWT
		out.Kind = KindInvalid
	case !bearer.none() && bearer.Secret() != socket:
		out.Kind, out.Token, out.second = KindToken, bearer, newToken(socket)
	case socket != "":
		out.Kind, out.Token = KindToken, newToken(socket)
	case err != nil, v != nil && v.failed:
		out.Kind = KindInvalid
	}
	return out, true
}

func scan(h Head) (authorization string, protocol, impersonates bool) {
	for i := range slices.Backward(h) {
		f := &h[i]
		switch f.Name {
		case "authorization": // the first counts, empty or not, as in http.Header.Get
			authorization = f.Value
		case fieldProtocol:
			protocol = true
		default:
			impersonates = impersonates || strings.HasPrefix(f.Name, "impersonate-")
		}
	}
	return authorization, protocol, impersonates
}

// bearerToken returns the token of an Authorization value. As upstream, it returns nothing unless
// the value is "Bearer <token>": for another scheme, no token, or a second space before it.
func bearerToken(authorization string) string {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(authorization), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, _ := strings.Cut(rest, " ")
	return token
}

// Conn holds a client's certificates and the result of their verification. Verifying takes 100 µs, or ten times as long
// if a stranger chose the keys, so Verify does it once per connection and CA generation. The result expires with the
// earliest NotAfter of the chains. A nil Conn has no certificate. A Conn is for one Authenticator; do not copy it.
type Conn struct {
	// Peer is the peer's certificates, leaf first. It may be empty. Set it before the first Read and do not change it.
	Peer []*x509.Certificate

	last    atomic.Pointer[authorization]
	issuer  atomic.Pointer[Credentials] // of FindIssuer
	verdict atomic.Pointer[verdict]
	mu      sync.Mutex // held during verification, so that a connection's streams share it
}

type authorization struct {
	value string
	token Token
}

const maxRemembered = 4 << 10 // limits the value that a connection remembers: longer ones fit in no HPACK table

// token returns the bearer token of an Authorization value. Most clients repeat the last value:
// comparing is cheaper than parsing and hashing, and over HTTP/2 it is usually the same string.
func (c *Conn) token(value string) Token {
	if c == nil || value == "" {
		return newToken(bearerToken(value))
	}
	if b := c.last.Load(); b != nil && b.value == value {
		return b.token
	}
	b := &authorization{value, newToken(bearerToken(value))}
	if len(value) <= maxRemembered {
		c.last.Store(b)
	}
	return b.token
}

// retryVerify is how long a failed verification is cached at most. It ends earlier with a new CA, and at the next
// NotBefore of the peer's certificates. Other causes are CAs of the cluster that are not valid yet, and a wrong clock.
const retryVerify = 10 * time.Minute

// verdict is the result of a verification. It is immutable.
type verdict struct {
	generation uint64
	until      time.Time
	front      bool      // the peer is a trusted front proxy
	client     *identity // the certificate's own user. Nil means none
	failed     bool      // a verification has failed
}

// verdict returns the result for a connection's certificates, nil for none. False means: verify them first.
func (a *Authenticator) verdict(c *Conn, now time.Time) (v *verdict, known bool) {
	if c == nil || len(c.Peer) == 0 || a.cfg.VerifyClient == nil && a.cfg.VerifyFrontProxy == nil {
		return nil, true
	}
	if now.IsZero() {
		now = time.Now()
	}
	v = c.verdict.Load()
	return v, v != nil && v.generation == a.cfg.Generation() && !now.After(v.until)
}

// Verify verifies a connection's certificates, for Read. It is costly, so it first calls enter to
// wait for a turn, once for all callers of the same connection; Verify returns enter's error.
//
//fairlead:expensive
func (a *Authenticator) Verify(c *Conn, enter func() (leave func(), err error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := a.verdict(c, time.Time{}); known {
		return nil
	}
	leave, err := enter()
	if err != nil {
		return err
	}
	defer leave()
	// Read the generation first: if the CA changes meanwhile, the verdict is outdated at once.
	v, now := &verdict{generation: a.cfg.Generation(), until: c.Peer[0].NotAfter}, time.Now()
	v.front = v.chain(a.cfg.VerifyFrontProxy, c.Peer) != nil
	if client := v.chain(a.cfg.VerifyClient, c.Peer); client != nil {
		// All chains of a certificate have one leaf, and only that is used. Without a common name it is no user.
		resp, ok, err := x509request.CommonNameUserConversion(client)
		if v.failed = v.failed || err != nil; err == nil && ok {
			v.client = authenticated(resp)
		}
	}
	if !v.front && v.client == nil { // a certificate that is valid for one of the two CAs is expected to fail the other
		v.until = now.Add(retryVerify)
		for _, cert := range c.Peer {
			if now.Before(cert.NotBefore) && cert.NotBefore.Before(v.until) {
				v.until = cert.NotBefore
			}
		}
	}
	c.verdict.Store(v)
	return nil
}

// chain returns the first verified chain, nil if there is none. No verdict outlasts any chain.
func (v *verdict) chain(verify func([]*x509.Certificate) ([][]*x509.Certificate, error),
	peer []*x509.Certificate) []*x509.Certificate {
	if verify == nil {
		return nil
	}
	chains, err := verify(peer)
	v.failed = v.failed || err != nil
	if err != nil || len(chains) == 0 {
		return nil
	}
	for _, cert := range slices.Concat(chains...) {
		if cert.NotAfter.Before(v.until) {
			v.until = cert.NotAfter
		}
	}
	return chains[0]
}

// authenticated returns the identity of a response. It adds system:authenticated like upstream.
func authenticated(resp *authenticator.Response) *identity {
	as := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return resp, true, nil
	})
	resp, _, _ = group.NewAuthenticatedGroupAdder(as).AuthenticateRequest(nil) // it has no errors of its own
	u := resp.User
	return &identity{DefaultInfo: user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra(),
	}}
}
