package authn

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// HeaderNames are the fields that carry a user from a front proxy to a server that trusts it. Case does not matter.
type HeaderNames struct {
	Username    []string // are tried in order; the first with a value wins
	UID         []string // are tried likewise. Empty means that no UID is carried
	Group       []string // are all read
	ExtraPrefix []string // the prefixes of extra fields; the rest of the name is the key. Empty means no extra
}

// The names that kube-aggregator sends, and that extension servers trust by default.
const (
	remoteUser  = "x-remote-user"
	remoteUID   = "x-remote-uid"
	remoteGroup = "x-remote-group"
	remoteExtra = "x-remote-extra-"
)

// lower returns valid names in lower case. It refuses an empty one: a prefix of every field.
func (n HeaderNames) lower() (HeaderNames, error) {
	var errs []error
	all := func(names []string) (low []string) {
		for _, name := range names {
			l := strings.ToLower(strings.TrimSpace(name))
			if !httpguts.ValidHeaderFieldName(l) {
				errs = append(errs, fmt.Errorf("%q is not a header field name", name))
				return nil
			}
			low = append(low, l)
		}
		return low
	}
	out := HeaderNames{Username: all(n.Username), UID: all(n.UID), Group: all(n.Group), ExtraPrefix: all(n.ExtraPrefix)}
	return out, errors.Join(errs...)
}

// nameSet is derived from one result of Config.Target: the names to send and to strip.
type nameSet struct {
	target    *HeaderNames
	known     bool
	completes bool     // the target adds groups itself: see implied
	prefixes  []string // Config.GroupPrefixes
	strip     stripper
	read      HeaderNames // of a front proxy
	// user and group are the standard names; uid and extra are empty if the target trusts none.
	user, group, uid, extra string
	// err says why no identity can be sent to this target: it would ignore untrusted fields, and use our identity.
	err error
}

// nameSet returns the set of the current target. Concurrent rebuilds have equal results.
func (a *Authenticator) nameSet() *nameSet {
	var target *HeaderNames
	known := true
	if a.cfg.Target != nil {
		target, known = a.cfg.Target()
	}
	if s := a.names.Load(); s != nil && s.target == target && s.known == known {
		return s
	}
	s := newNameSet(target, a.read)
	if s.read = a.read; a.cfg.ReadTarget && target != nil {
		s.read, _ = target.lower() // its error is in s.err
	}
	if s.known = known; !known {
		s.err = errors.New("the header names that the target trusts are not read yet")
	}
	a.names.Store(s)
	return s
}

// Unfit returns why no user can be asserted to the target now, which is no caller's fault: its names, and perhaps the
// CAs of callers, are not read yet or cannot be used. Nil means that all can.
func (a *Authenticator) Unfit() error { return a.nameSet().err }

func newNameSet(target *HeaderNames, read HeaderNames) *nameSet {
	n := HeaderNames{[]string{remoteUser}, []string{remoteUID}, []string{remoteGroup}, []string{remoteExtra}}
	s := &nameSet{target: target, user: remoteUser, group: remoteGroup}
	if target != nil {
		n, s.err = target.lower()
	}
	if s.err == nil && !slices.Contains(n.Username, remoteUser) {
		s.err = fmt.Errorf("the target trusts no X-Remote-User (its user names: %q)", n.Username)
	}
	if s.err == nil && !slices.Contains(n.Group, remoteGroup) {
		s.err = fmt.Errorf("the target trusts no X-Remote-Group (its group names: %q)", n.Group)
	}
	s.uid = preferred(n.UID, remoteUID)
	s.extra = preferred(n.ExtraPrefix, remoteExtra)
	s.strip = newStripper(read, n)
	return s
}

// preferred returns the standard name if trusted, else the first one: without the extra, a user may lose a restriction.
func preferred(trusted []string, standard string) string {
	switch {
	case len(trusted) == 0:
		return ""
	case slices.Contains(trusted, standard):
		return standard
	}
	return trusted[0]
}

// user returns the user that a verified front proxy asserts, or nil: then certificate and token are tried, as in
// k8s.io/apiserver/pkg/authentication/request/headerrequest. Strings are cloned: an identity outlives the request.
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
			if key, ok := strings.CutPrefix(f.Name, prefix); ok {
				// Else unchanged: an extra may be a restriction, and must not be lost.
				if decoded, err := url.PathUnescape(key); err == nil {
					key = decoded
				}
				key = strings.Clone(key)
				u.Extra[key] = append(u.Extra[key], strings.Clone(f.Value))
			}
		}
	}
	return authenticated(&authenticator.Response{User: u})
}

// first returns the first value of the first name that has one. Only a name's first field counts, even if empty.
func first(h Head, names []string) string {
	for _, n := range names {
		if i := slices.IndexFunc(h, func(f hpack.HeaderField) bool { return f.Name == n }); i >= 0 && h[i].Value != "" {
			return h[i].Value
		}
	}
	return ""
}
