package authn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identity is a user of this package. It caches its header fields, which are the same for all its
// requests.
type identity struct {
	user.DefaultInfo
	rendered [2]atomic.Pointer[rendering] // for Headers, and for Impersonation
}

// Is reports whether other is the same identity. Identities are immutable, so then no fields need
// to be compared.
func (id *identity) Is(other user.Info) bool {
	o, ok := other.(*identity)
	return ok && o == id
}

// rendering is an identity's fields for one set of names. It is immutable.
type rendering struct {
	names  *nameSet
	fields []hpack.HeaderField
	err    error
}

// Headers appends the fields that assert a user. They are those of client-go's
// transport.SetAuthProxyHeaders, under the names that the target trusts, and Sensitive so that no
// HPACK table keeps them. It fails and appends nothing if HTTP would change a value: cut or
// trimmed, a name could become another user's. Append them last, after all stripping. For a user of
// this package it allocates only dst.
func (a *Authenticator) Headers(dst []hpack.HeaderField, u user.Info) ([]hpack.HeaderField, error) {
	return a.nameSet().assert(dst, u, 0)
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
