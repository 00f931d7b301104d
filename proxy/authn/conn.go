package authn

import (
	"crypto/x509"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Conn is a client connection's slot: its certificates, and what verifying them found out. Verifying costs some
// 100 µs, and ten times as much where a stranger chose the keys, so it is done once per connection and CA
// generation, by Verify; the result dies with the earliest NotAfter of the chains. A nil Conn has no
// certificate. It belongs to one Authenticator and must not be copied.
type Conn struct {
	// Peer is what the peer presented, leaf first. Empty: nothing. Set it before the first Read and leave it alone.
	Peer []*x509.Certificate

	last    atomic.Pointer[authorization]
	verdict atomic.Pointer[verdict]
	mu      sync.Mutex // held while verifying, so that a connection's first hundred streams verify once
}

// authorization is the value of a field and what bearerToken finds in it.
type authorization struct {
	value string
	token Token
}

// maxRemembered bounds the value that a connection remembers: longer ones fit in no HPACK table either.
const maxRemembered = 4 << 10

// token returns the bearer token of an Authorization value. A client mostly comes with the same one again: comparing is cheaper than cutting and hashing, and over
// HTTP/2 the value is mostly the very same string.
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

// retryVerify is for how long a failed verification is believed at most. Other CAs end it at once, by their
// generation, and so does the next NotBefore of what was presented; what is left are CAs of the cluster that are
// not valid yet, and a clock that was wrong.
const retryVerify = 10 * time.Minute

// verdict is what verifying found out. Immutable.
type verdict struct {
	generation uint64
	until      time.Time
	// front says that the peer is a trusted front proxy.
	front    bool
	frontErr error
	// client is the certificate's own user, nil when it has none.
	client    *identity
	clientErr error
}

// err is why the certificate failed, nil when no verification failed.
func (v *verdict) err() error {
	if v.clientErr != nil {
		return v.clientErr
	}
	return v.frontErr
}

func (v *verdict) alive(generation uint64, now time.Time) bool {
	return v != nil && v.generation == generation && !now.After(v.until)
}

// verdict returns what is known of a connection's certificates, nil when it has none. It reports false when they
// have to be verified first.
//
//fairlead:loop
func (a *Authenticator) verdict(c *Conn) (v *verdict, known bool) {
	if c == nil || len(c.Peer) == 0 || a.cfg.VerifyClient == nil && a.cfg.VerifyFrontProxy == nil {
		return nil, true
	}
	v = c.verdict.Load()
	return v, v.alive(a.cfg.Generation(), time.Now())
}

// Verified reports whether Read knows all about a connection's certificates.
//
//fairlead:loop
func (a *Authenticator) Verified(c *Conn) bool {
	_, known := a.verdict(c)
	return known
}

// Verify verifies a connection's certificates, unless that was done. It is dear, so enter is asked for a turn
// first, once for all who wait for the same connection; its error is Verify's.
//
//fairlead:dear
func (a *Authenticator) Verify(c *Conn, enter func() (leave func(), err error)) error {
	if a.Verified(c) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.Verified(c) {
		return nil
	}
	leave, err := enter()
	if err != nil {
		return err
	}
	defer leave()
	// The generation is read before verifying: if the CA changes meanwhile, the verdict is already dead.
	generation := a.cfg.Generation()
	v := a.verify(c.Peer, time.Now())
	v.generation = generation
	c.verdict.Store(v)
	return nil
}

//fairlead:dear
func (a *Authenticator) verify(peer []*x509.Certificate, now time.Time) *verdict {
	v := &verdict{until: peer[0].NotAfter}
	var front, client []*x509.Certificate
	front, v.frontErr = v.chain(a.cfg.VerifyFrontProxy, peer)
	v.front = front != nil
	if client, v.clientErr = v.chain(a.cfg.VerifyClient, peer); client != nil {
		v.client, v.clientErr = certificateUser(client)
	}
	// A certificate that is good for one of the two is expected to fail the other.
	if !v.front && v.client == nil {
		v.until = now.Add(retryVerify)
		for _, cert := range peer {
			if now.Before(cert.NotBefore) && cert.NotBefore.Before(v.until) {
				v.until = cert.NotBefore
			}
		}
	}
	return v
}

// chain returns what one of the two CAs has found, nil if nothing. A verdict lasts no longer than any chain of either.
func (v *verdict) chain(verify func([]*x509.Certificate) ([][]*x509.Certificate, error), peer []*x509.Certificate) ([]*x509.Certificate, error) {
	if verify == nil {
		return nil, nil
	}
	chains, err := verify(peer)
	if err != nil || len(chains) == 0 {
		return nil, err
	}
	for _, chain := range chains {
		for _, cert := range chain {
			if cert.NotAfter.Before(v.until) {
				v.until = cert.NotAfter
			}
		}
	}
	return chains[0], nil
}

// certificateUser is the user that upstream's own conversion makes of a chain; nil without an error when its leaf has no common name. All chains of a
// certificate have the same leaf, and nothing else is looked at.
func certificateUser(chain []*x509.Certificate) (*identity, error) {
	resp, ok, err := x509request.CommonNameUserConversion(chain)
	if err != nil || !ok {
		return nil, err
	}
	return authenticated(resp)
}

// authenticated makes an identity of a response, with system:authenticated added as upstream's own adder does.
func authenticated(resp *authenticator.Response) (*identity, error) {
	adder := group.NewAuthenticatedGroupAdder(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return resp, true, nil
	}))
	resp, _, err := adder.AuthenticateRequest(nil)
	if err != nil {
		return nil, err
	}
	u := resp.User
	return &identity{DefaultInfo: user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra()}}, nil
}
