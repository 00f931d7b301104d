package authn

import (
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// Head is a request head's fields with lower-case names, in order. Pseudo-header fields may be among them and are ignored.
type Head []hpack.HeaderField

const fieldProtocol = "sec-websocket-protocol"

// Kind is what kind of credentials decide a request.
type Kind uint8

// The kinds. KindNone is the zero value: nothing was presented that kube-apiserver would look at.
const (
	KindNone Kind = iota
	// KindFrontProxy is a user asserted by a verified front proxy.
	KindFrontProxy
	// KindCertificate is the user of a verified client certificate.
	KindCertificate
	// KindToken is a bearer token, not yet looked at. It decides even when a certificate came with it and failed.
	KindToken
	// KindInvalid is something that failed with nothing beside it that could succeed: 401, whatever the side. Passed on without its failed certificate
	// it would be anonymous.
	KindInvalid
)

// Credentials are what a request presented.
type Credentials struct {
	// Kind says which of them decide.
	Kind Kind
	// Impersonates says that there is a field whose name begins with Impersonate-.
	Impersonates bool
	// User is set for KindFrontProxy and KindCertificate. Read-only.
	User user.Info
	// Token is set for KindToken.
	Token Token
	// From is where they came from, for Review, which lets no address take all the places of strangers. Set by the caller.
	From bound.Source
	// Now is when they were read, so that the clock, which is slow on virtual machines, is asked once per request. Zero: Cached and Pool ask it.
	Now time.Time
	// Err is why something failed, for the log: always set for KindInvalid, and for KindToken when a certificate failed. It holds no token.
	Err error

	// second is the WebSocket token when there is a bearer token too: it is tried if the first fails.
	second Token
}

// presented is what one pass over the fields found.
type presented struct {
	authorization              string
	authorized, protocol, imps bool
}

// Read says who is asking, as far as can be known without I/O. It reports false when the connection's
// certificates have to be verified first. The upgrade is the protocol that the request will ask its
// backend to switch to, empty if none: only a WebSocket's subprotocols can be a token. Whoever
// forwards the request says so, since a token that were read here and not in the forwarded request
// would be proven by an answer to nobody.
//
//fairlead:loop
func (a *Authenticator) Read(c *Conn, h Head, upgrade string) (Credentials, bool) {
	v, known := a.verdict(c)
	if !known {
		return Credentials{}, false
	}
	return a.credentials(c, v, h, upgrade), true
}

func (a *Authenticator) credentials(c *Conn, v *verdict, h Head, upgrade string) Credentials {
	p := scan(h)
	out := Credentials{Impersonates: p.imps}
	if v != nil {
		if v.front {
			if u := a.read.user(h); u != nil {
				out.Kind, out.User = KindFrontProxy, u
				return out
			}
		}
		if v.client != nil {
			out.Kind, out.User = KindCertificate, v.client
			return out
		}
		out.Err = v.err()
	}
	bearer := c.token(p.authorization)
	socket, err := "", error(nil)
	if p.protocol && strings.EqualFold(upgrade, "websocket") {
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
	return out
}

func scan(h Head) presented {
	var p presented
	for i := range h {
		f := &h[i]
		switch f.Name {
		case "authorization": // the first counts, empty or not, as http.Header.Get has it
			if !p.authorized {
				p.authorized, p.authorization = true, f.Value
			}
		case fieldProtocol:
			p.protocol = true
		default:
			p.imps = p.imps || strings.HasPrefix(f.Name, "impersonate-")
		}
	}
	return p
}

// bearerToken cuts the token out of an Authorization value. Whatever is not "Bearer <token>" is nothing, as upstream has it: any other scheme, no
// token, or a second space before it.
func bearerToken(authorization string) string {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(authorization), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	token, _, _ := strings.Cut(rest, " ")
	return token
}
