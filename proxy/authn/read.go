package authn

import (
	"cmp"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Head is the fields of a request head in order, with names in lower case. Pseudo-header fields are
// ignored.
type Head []hpack.HeaderField

const fieldProtocol = "sec-websocket-protocol"

// Kind is the kind of the credentials that decide a request.
type Kind uint8

// The kinds. KindNone is the zero value: there are no credentials that kube-apiserver would use.
const (
	KindNone Kind = iota
	// KindFrontProxy is a user asserted by a verified front proxy.
	KindFrontProxy
	// KindCertificate is the user of a verified client certificate.
	KindCertificate
	// KindToken is a bearer token, not yet reviewed. It decides even if a certificate came with it
	// and failed.
	KindToken
	// KindInvalid means that credentials failed and there are no others: 401, on either side.
	// Without its failed certificate the forwarded request would be anonymous.
	KindInvalid
	// KindIssued is a token that this process verifies itself and never forwards. Read returns
	// KindToken; after Issued and Cached, the caller sets KindIssued.
	KindIssued
)

// Credentials are the credentials of a request.
type Credentials struct {
	// Kind says which credentials decide.
	Kind Kind
	// Impersonates says that there is a field with the prefix Impersonate-.
	Impersonates bool
	// User is set for KindFrontProxy, KindCertificate and KindIssued. Read-only.
	User user.Info
	// Token is set for KindToken.
	Token Token
	// Payer identifies a proven token for bounds, however the token is written. Set by Pool.
	Payer string
	// Now is when they were read, so that the clock, which is slow on virtual machines, is read
	// once per request. If zero, Cached and Pool read it.
	Now time.Time
	// Err says why credentials failed, for the log. It is always set for KindInvalid, and for
	// KindToken if a certificate failed. It holds no token.
	Err error

	// second is the WebSocket token if there is also a bearer token. It is tried if the first
	// fails.
	second Token
	// issued and alsoIssued are the result of Config.Issued for both. Set by FindIssuer.
	issued, alsoIssued bool
	generation         uint64
}

// Same reports whether two Credentials are the same tokens.
func (c *Credentials) Same(other *Credentials) bool {
	return c.Kind == other.Kind && c.Token == other.Token && c.second == other.second
}

// Read returns the caller's credentials, as far as they can be checked without I/O. It reports
// false if the connection's certificates must be verified first. upgrade is the protocol to which
// the forwarded request will ask to switch, or empty: only a WebSocket upgrade carries a token in
// its subprotocols. It must match the forwarded request; otherwise a response could prove a token
// that was not forwarded.
func (a *Authenticator) Read(c *Conn, h Head, upgrade string) (Credentials, bool) {
	v, known := a.verdict(c)
	if !known {
		return Credentials{}, false
	}
	authorization, protocol, impersonates := scan(h)
	out := Credentials{Impersonates: impersonates}
	if v != nil {
		if v.front {
			if u := a.read.user(h); u != nil {
				out.Kind, out.User = KindFrontProxy, u
				return out, true
			}
		}
		if v.client != nil {
			out.Kind, out.User = KindCertificate, v.client
			return out, true
		}
		out.Err = cmp.Or(v.clientErr, v.frontErr)
	}
	bearer := c.token(authorization)
	socket, err := "", error(nil)
	if protocol && strings.EqualFold(upgrade, "websocket") {
		socket, err = protocolToken(h)
	}
	switch {
	case !bearer.none():
		out.Kind, out.Token, out.second = KindToken, bearer, newToken(socket)
	case socket != "":
		out.Kind, out.Token = KindToken, newToken(socket)
	case err != nil:
		out.Kind, out.Err = KindInvalid, err
	case out.Err != nil:
		out.Kind = KindInvalid
	}
	return out, true
}

// scan makes one pass over the fields.
func scan(h Head) (authorization string, protocol, impersonates bool) {
	authorized := false
	for i := range h {
		f := &h[i]
		switch f.Name {
		case "authorization": // the first counts, empty or not, as in http.Header.Get
			if !authorized {
				authorized, authorization = true, f.Value
			}
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
