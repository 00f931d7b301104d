package authn

import (
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// user returns the user that a verified front proxy asserts, nil if it asserts none: then the
// certificate and the token are tried, as in
// k8s.io/apiserver/pkg/authentication/request/headerrequest. Strings are cloned, because an
// identity outlives the request's buffers.
func (n *HeaderNames) user(h Head) *identity {
	name := first(h, n.Username)
	if name == "" {
		return nil
	}
	u := &user.DefaultInfo{Name: strings.Clone(name), UID: strings.Clone(first(h, n.UID)), Extra: map[string][]string{}}
	for _, group := range n.Group {
		for _, f := range h {
			if f.Name == group && f.Value != "" {
				u.Groups = append(u.Groups, strings.Clone(f.Value))
			}
		}
	}
	for _, prefix := range n.ExtraPrefix {
		for _, f := range h {
			if strings.HasPrefix(f.Name, prefix) {
				key := f.Name[len(prefix):]
				if decoded, err := url.PathUnescape(key); err == nil { // else unchanged: an extra may be a restriction, and must not be lost
					key = decoded
				}
				key = strings.Clone(key)
				u.Extra[key] = append(u.Extra[key], strings.Clone(f.Value))
			}
		}
	}
	id, err := authenticated(&authenticator.Response{User: u})
	if err != nil {
		return nil
	}
	return id
}

// first returns the first value of the first name that has one. Only the first field of a name
// counts, even if it is empty.
func first(h Head, names []string) string {
	for _, n := range names {
		if i := slices.IndexFunc(h, func(f hpack.HeaderField) bool { return f.Name == n }); i >= 0 && h[i].Value != "" {
			return h[i].Value
		}
	}
	return ""
}
