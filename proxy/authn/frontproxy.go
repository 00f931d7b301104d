package authn

import (
	"net/url"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// user reads the user that a verified front proxy asserts, nil when it asserts none: then the certificate and the token are tried, as in
// k8s.io/apiserver/pkg/authentication/request/headerrequest. Strings are cloned: an identity outlives the request's buffers.
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
				key := extraKey(f.Name[len(prefix):])
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

// first is the first value of the first name that has one. Only a field's first line counts, even when it is empty.
func first(h Head, names []string) string {
	for _, n := range names {
		for _, f := range h {
			if f.Name == n {
				if f.Value != "" {
					return f.Value
				}
				break
			}
		}
	}
	return ""
}

// extraKey decodes the key in a field's name. A malformed one is kept as it is: an extra may be a limit, and must not be lost.
func extraKey(encoded string) string {
	if key, err := url.PathUnescape(encoded); err == nil {
		return strings.Clone(key)
	}
	return strings.Clone(encoded)
}
