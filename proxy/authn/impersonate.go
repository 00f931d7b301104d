package authn

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"
)

// The names of kube-apiserver (k8s.io/api/authentication/v1).
const (
	asUser  = "impersonate-user"
	asUID   = "impersonate-uid"
	asGroup = "impersonate-group"
	asExtra = "impersonate-extra-"
)

// Impersonation appends the fields with which the local apiserver serves a user over
// PoolImpersonate, with our credential last. Like Headers, it fails and appends nothing for a user
// without a name, because the request would run as this process.
func (a *Authenticator) Impersonation(dst []hpack.HeaderField, u user.Info) ([]hpack.HeaderField, error) {
	if a.cfg.Impersonate == nil {
		return dst, errNoImpersonation
	}
	set, err := a.as.assert(dst, u, 1)
	if err != nil {
		return set, err
	}
	if own := a.cfg.Impersonate(); own != "" {
		set = append(set, hpack.HeaderField{Name: "authorization", Value: own, Sensitive: true})
	}
	return set, nil
}

var errNoImpersonation = errors.New("asserting a user: there is no credential that may impersonate")

// implied reports whether kube-apiserver itself adds a user's group system:authenticated
// (impersonationModeState.check in k8s.io/apiserver/pkg/endpoints/filters/impersonation), so that
// no rule is needed to impersonate it. If a request names no group, kube-apiserver adds those of a
// ServiceAccount or a node, by the name; so the list is never left empty for such users.
func implied(u user.Info) bool {
	if u.GetName() == user.Anonymous || slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
		return false
	}
	return !strings.HasPrefix(u.GetName(), "system:") || slices.ContainsFunc(u.GetGroups(), func(g string) bool { return g != "" && g != user.AllAuthenticated })
}

// Refuses returns the name or the group that must not be impersonated, or two empty strings. named
// says that a caller impersonates the user: then the cluster decides about the name, and only
// groups are checked.
func (a *Authenticator) Refuses(u user.Info, named bool) (name, group string) {
	for _, g := range u.GetGroups() {
		// The first two only say whether the user is known.
		if g != user.AllAuthenticated && g != user.AllUnauthenticated && listed(a.cfg.RefuseGroups, g) {
			return "", g
		}
	}
	if !named && listed(a.cfg.RefuseUsers, u.GetName()) {
		return u.GetName(), ""
	}
	return "", ""
}

func listed(names []string, name string) bool {
	for _, n := range names {
		if prefix, wild := strings.CutSuffix(n, "*"); n == name || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// issued is the result of Config.Issued for a token.
type issued struct {
	token      Token
	is         bool
	generation uint64
}

// maxPeek limits the tokens whose issuer is read on the loop: that takes up to 30 µs a kilobyte,
// and most tokens are shorter.
const maxPeek = 2 << 10

// Issued reports whether the credentials are a token that Review verifies itself; then a second
// token is ignored. If wait is false and it would take long, known is false.
func (a *Authenticator) Issued(conn *Conn, c *Credentials, wait bool) (is, known bool) {
	if a.cfg.Issued == nil || c.Kind != KindToken {
		return false, true
	}
	generation := a.cfg.ReviewGeneration()
	if conn != nil {
		if last := conn.issued.Load(); last != nil && last.token == c.Token && last.generation == generation {
			is, known = last.is, true
		}
	}
	if !known {
		if !wait && len(c.Token.Secret()) > maxPeek {
			return false, false
		}
		is = a.cfg.Issued(c.Token.Secret())
		if conn != nil && len(c.Token.Secret()) <= maxRemembered {
			conn.issued.Store(&issued{c.Token, is, generation})
		}
	}
	switch {
	case is:
		c.second = Token{}
	case c.second.none():
	case !wait && len(c.second.Secret()) > maxPeek:
		return false, false
	case a.cfg.Issued(c.second.Secret()):
		// If it were forwarded, the cluster would try it after the first one fails.
		c.Kind, c.Err = KindInvalid, errSecond
	}
	return is, true
}

var errSecond = fmt.Errorf("%w: a token that this process verifies itself came with another token", ErrUnauthenticated)
