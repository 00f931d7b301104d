package authn

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identity is a user of this package. It caches its header fields: all its requests have them.
type identity struct {
	user.DefaultInfo
	rendered [2]atomic.Pointer[rendering] // in X-Remote-*, and in Impersonate-*
}

// rendering is an identity's fields for one set of names. It is immutable.
type rendering struct {
	names  *nameSet
	fields []hpack.HeaderField
	err    error
}

// Assert appends the fields that assert a user over a pool. They are client-go's (transport.SetAuthProxyHeaders), under
// the names that the target trusts, and Sensitive so that no HPACK table keeps them; over PoolImpersonate those with
// which the local apiserver serves a user, with our credential last. It fails and appends nothing for a user without a
// name, because the request would run as this process, and if HTTP would change a value: cut or trimmed, a name could
// become another user's. Append them last, after all stripping. For a user of this package it allocates only dst.
func (a *Authenticator) Assert(dst []hpack.HeaderField, u user.Info, p Pool) ([]hpack.HeaderField, error) {
	if p != PoolImpersonate {
		return a.nameSet().assert(dst, u, 0)
	}
	if a.cfg.Impersonate == nil {
		return dst, errors.New("asserting a user: there is no credential that may impersonate")
	}
	set, err := a.as.assert(dst, u, 1)
	if own := a.cfg.Impersonate(); err == nil && own != "" {
		set = append(set, hpack.HeaderField{Name: "authorization", Value: own, Sensitive: true})
	}
	return set, err
}

// assert appends a user's fields. An identity caches them at the index place.
func (s *nameSet) assert(dst []hpack.HeaderField, u user.Info, place int) ([]hpack.HeaderField, error) {
	id, ours := u.(*identity)
	if ours {
		if r := id.rendered[place].Load(); r != nil && r.names == s {
			return append(dst, r.fields...), r.err
		}
	}
	fields, err := s.render(u)
	if ours {
		id.rendered[place].Store(&rendering{names: s, fields: fields, err: err})
	}
	return append(dst, fields...), err
}

func (s *nameSet) render(u user.Info) ([]hpack.HeaderField, error) {
	if s.err != nil {
		return nil, fmt.Errorf("asserting a user: %w", s.err)
	}
	if u == nil || u.GetName() == "" { // without a name the target would use the identity of our own certificate
		return nil, fmt.Errorf("asserting a user: it has no name")
	}
	var fields []hpack.HeaderField
	var err error
	// add refuses values that HTTP would change: control characters (RFC 9110 section 5.5), and
	// leading or trailing white space, which readers trim.
	add := func(what, name, value string) {
		if !httpguts.ValidHeaderFieldValue(value) || strings.Trim(value, " \t") != value {
			err = fmt.Errorf("asserting a user: its %s %q cannot be a header field's value", what, value)
		}
		fields = append(fields, hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	add("user name", s.user, u.GetName())
	if s.uid != "" && u.GetUID() != "" {
		add("UID", s.uid, u.GetUID())
	}
	groups := u.GetGroups()
	if len(s.prefixes) > 0 {
		groups = slices.DeleteFunc(slices.Clone(groups), func(g string) bool {
			return !strings.HasPrefix(g, "system:") &&
				!slices.ContainsFunc(s.prefixes, func(prefix string) bool { return strings.HasPrefix(g, prefix) })
		})
	}
	completes := s.completes && implied(u.GetName(), groups)
	for _, g := range groups {
		if g != "" && (g != user.AllAuthenticated || !completes) { // readers ignore an empty group
			add("group", s.group, g)
		}
	}
	if extra := u.GetExtra(); s.extra != "" {
		for _, k := range slices.Sorted(maps.Keys(extra)) {
			name := s.extra + escapeKey(k)
			for _, v := range extra[k] {
				add("extra", name, v)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return fields, nil
}

// escapeKey percent-encodes in an extra's key the percent sign, and bytes that are invalid in a field name. Readers
// convert the name to lower case before they decode it, so upper-case letters are lost, as they are upstream.
func escapeKey(key string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c == '%' || !httpguts.IsTokenRune(rune(c)) {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return strings.ToLower(b.String())
}

// implied reports whether kube-apiserver itself adds a user's group system:authenticated (impersonationModeState.check
// in k8s.io/apiserver/pkg/endpoints/filters/impersonation), so that no rule is needed for it. Without a group,
// kube-apiserver adds those of a ServiceAccount or a node, by the name; so the list is never empty for them.
func implied(name string, groups []string) bool {
	if name == user.Anonymous || slices.Contains(groups, user.AllUnauthenticated) {
		return false
	}
	return !strings.HasPrefix(name, "system:") ||
		slices.ContainsFunc(groups, func(g string) bool { return g != "" && g != user.AllAuthenticated })
}

// Refuses returns the name or the group that must not be impersonated, or two empty strings. named says that a caller
// impersonates the user: then the cluster decides about the name, and only groups are checked.
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
	return slices.ContainsFunc(names, func(n string) bool {
		prefix, wild := strings.CutSuffix(n, "*")
		return n == name || wild && strings.HasPrefix(name, prefix)
	})
}

// Pool is a request's kind of connection: it decides which fields are forwarded, and how the identity is asserted.
type Pool uint8

// The pools. PoolRemote is the zero value and the strictest.
const (
	// PoolRemote leads to an extension server. It gets the identity, and nothing to act as the caller elsewhere.
	PoolRemote Pool = iota
	// PoolCertificate leads to the local apiserver with our proxy client certificate. It gets the
	// identity in X-Remote-*, without Authorization.
	PoolCertificate
	// PoolProven leads to the local apiserver without a client certificate, for recently accepted tokens, unchanged.
	PoolProven
	// PoolUnproven is the same for anonymous requests and other tokens. kube-apiserver answers an unauthenticated
	// HTTP/2 request with GOAWAY, so such requests must not share a connection with long-running ones.
	PoolUnproven
	// PoolImpersonate leads to the local apiserver with a credential of this process that may impersonate. It gets the
	// identity in Impersonate-*, and of the caller's fields only those that an extension server gets.
	PoolImpersonate
)

// Strip reports whether a client's field must not be forwarded over a pool. It matches all fields that could assert an
// identity (X-Remote-*, every name and prefix of our flags and of the target), in any spelling, and fields that are
// secret or already used. Underscores count as dashes, because CGI-like servers treat them alike. The caller drops
// hop-by-hop fields itself. It does not allocate.
func (a *Authenticator) Strip(name string, p Pool) bool {
	if name == "" {
		return false
	}
	for _, r := range a.nameSet().strip[plain(name[0])] {
		if slices.Contains(r.over, p) && hasPrefix(name, r.name) && (r.prefix || len(name) == len(r.name)) {
			return r.name != fieldProtocol || strings.Contains(name, "_") // exact spelling: see CutProtocol
		}
	}
	return false
}

// stripper has the rules for names by the first byte, as plain returns it: most fields cost one look-up.
type stripper [256][]rule

// rule matches a name, or all that begin with it, over some pools.
type rule struct {
	name   string // in lower case, with dashes only
	prefix bool
	over   []Pool
}

func newStripper(sets ...HeaderNames) (s stripper) {
	all := []Pool{PoolRemote, PoolImpersonate, PoolCertificate, PoolProven, PoolUnproven}
	add := func(over []Pool, prefix bool, names ...string) {
		for _, name := range names {
			name = strings.ReplaceAll(name, "_", "-")
			s[name[0]] = append(s[name[0]], rule{name, prefix, over})
		}
	}
	add(all, true, "x-remote-")
	for _, n := range sets {
		add(all, false, slices.Concat(n.Username, n.UID, n.Group)...)
		add(all, true, n.ExtraPrefix...)
	}
	// These prove or change the caller's identity. In their exact spelling they may pass to the local apiserver over
	// the token pools, where the caller speaks for itself. kube-apiserver ignores underscores, other servers may not.
	add(all, false, "proxy-authorization")
	add(all[:3], false, "authorization")
	add(all[:2], true, "impersonate-")
	add(all[:2], false, fieldProtocol)
	return s
}

// hasPrefix reports whether name, in any case and spelling, begins with prefix, which is in lower case with dashes.
func hasPrefix(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if plain(name[i]) != prefix[i] {
			return false
		}
	}
	return true
}

// plain returns the byte of a name that stands for all its spellings.
func plain(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + ('a' - 'A')
	case c == '_':
		return '-'
	}
	return c
}
