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

// Assert appends the fields that assert a user over a pool. They are those of client-go's
// transport.SetAuthProxyHeaders, under the names that the target trusts, and Sensitive so that no HPACK table keeps
// them; over PoolImpersonate those with which the local apiserver serves a user, with our credential last. It fails and
// appends nothing for a user without a name, because the request would run as this process, and if HTTP would change a
// value: cut or trimmed, a name could become another user's. Append them last, after all stripping. For a user of this
// package it allocates only dst.
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
	// Without a name the target would use the identity of our own certificate.
	if u == nil || u.GetName() == "" {
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
	completes := s.completes && implied(u)
	for _, g := range u.GetGroups() {
		if g != "" && (g != user.AllAuthenticated || !completes) { // readers ignore an empty group
			add("group", s.group, g)
		}
	}
	extra := u.GetExtra()
	if s.extra == "" {
		extra = nil
	}
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		name := s.extra + escapeKey(k)
		for _, v := range extra[k] {
			add("extra", name, v)
		}
	}
	if err != nil {
		return nil, err
	}
	return fields, nil
}

// escapeKey encodes an extra's key for a field name: the percent sign, and bytes that are invalid
// in a name, are percent-encoded. Readers convert the name to lower case before they decode it, so
// upper-case letters are lost, as they are upstream.
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
