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

// identity is a user of ours: a user.Info that remembers its own header fields, which are the same for every one of its requests.
type identity struct {
	user.DefaultInfo
	rendered atomic.Pointer[rendering]
}

// Is reports whether another user is this very one. An identity never changes, so then nothing of it needs to be compared.
func (id *identity) Is(other user.Info) bool {
	o, ok := other.(*identity)
	return ok && o == id
}

// rendering is an identity's fields for one set of names. Immutable.
type rendering struct {
	names  *nameSet
	fields []hpack.HeaderField
	err    error
}

// Headers appends the fields that assert a user: what transport.SetAuthProxyHeaders of client-go sets, under the names that the target trusts, marked
// Sensitive so that no HPACK table keeps them. A value that could not arrive as it is makes it fail and append nothing: cut or trimmed, a name could
// become another's. Append them last, after everything of the client's was stripped. For a user that came from this package it allocates nothing but dst.
func (a *Authenticator) Headers(dst []hpack.HeaderField, u user.Info) ([]hpack.HeaderField, error) {
	names := a.nameSet()
	id, ours := u.(*identity)
	if ours {
		if r := id.rendered.Load(); r != nil && r.names == names {
			return append(dst, r.fields...), r.err
		}
	}
	fields, err := names.render(u)
	if ours {
		id.rendered.Store(&rendering{names: names, fields: fields, err: err})
	}
	return append(dst, fields...), err
}

func (s *nameSet) render(u user.Info) ([]hpack.HeaderField, error) {
	if s.err != nil {
		return nil, fmt.Errorf("asserting a user: %w", s.err)
	}
	// Without a name the target would take the request for that of our own certificate.
	if u == nil || u.GetName() == "" {
		return nil, fmt.Errorf("asserting a user: it has no name")
	}
	r := renderer{}
	r.add("user name", remoteUser, u.GetName())
	if s.uid != "" && u.GetUID() != "" {
		r.add("UID", s.uid, u.GetUID())
	}
	for _, g := range u.GetGroups() {
		if g != "" { // the reader ignores an empty one
			r.add("group", remoteGroup, g)
		}
	}
	if s.extra != "" {
		r.addExtra(s.extra, u.GetExtra())
	}
	if r.err != nil {
		return nil, fmt.Errorf("asserting a user: %w", r.err)
	}
	return r.fields, nil
}

type renderer struct {
	fields []hpack.HeaderField
	err    error
}

func (r *renderer) addExtra(prefix string, extra map[string][]string) {
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		name := prefix + escapeKey(k)
		for _, v := range extra[k] {
			r.add("extra", name, v)
		}
	}
}

// add refuses what HTTP would change on the way: control characters (RFC 9110 section 5.5), and white space at either end, which readers trim.
func (r *renderer) add(what, name, value string) {
	if !httpguts.ValidHeaderFieldValue(value) || strings.Trim(value, " \t") != value {
		r.err = fmt.Errorf("its %s %q cannot be a header field's value", what, value)
		return
	}
	r.fields = append(r.fields, hpack.HeaderField{Name: name, Value: value, Sensitive: true})
}

// escapeKey writes an extra's key into a field name: bytes that a name cannot hold, and the percent sign, are percent-encoded. Readers lower-case the
// name before they decode it, so upper-case letters are lost here as they are upstream.
func escapeKey(key string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c == '%' || c >= 0x80 || !httpguts.IsTokenRune(rune(c)) {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return strings.ToLower(b.String())
}
