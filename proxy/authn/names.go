package authn

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// HeaderNames are the header fields that carry a user between a front proxy and who trusts it. Case does not matter.
type HeaderNames struct {
	// Username fields are looked at in order; the first with a value wins.
	Username []string
	// UID fields likewise. Empty: no UID is carried.
	UID []string
	// Group fields are all read.
	Group []string
	// ExtraPrefix is what the names of extra fields begin with; the rest is the key. Empty: no extra is carried.
	ExtraPrefix []string
}

// The names that kube-aggregator sends and that every extension server trusts unless it was told otherwise.
const (
	remoteUser  = "x-remote-user"
	remoteUID   = "x-remote-uid"
	remoteGroup = "x-remote-group"
	remoteExtra = "x-remote-extra-"
)

func (n HeaderNames) empty() bool {
	return len(n.Username)+len(n.UID)+len(n.Group)+len(n.ExtraPrefix) == 0
}

// lower returns valid names in lower case. An empty one is refused: as a prefix it would be every field.
func lower(names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		n := strings.ToLower(strings.TrimSpace(name))
		if !httpguts.ValidHeaderFieldName(n) {
			return nil, fmt.Errorf("%q is not a header field name", name)
		}
		out = append(out, n)
	}
	return out, nil
}

func (n HeaderNames) lower() (HeaderNames, error) {
	var out HeaderNames
	var errs [4]error
	out.Username, errs[0] = lower(n.Username)
	out.UID, errs[1] = lower(n.UID)
	out.Group, errs[2] = lower(n.Group)
	out.ExtraPrefix, errs[3] = lower(n.ExtraPrefix)
	return out, errors.Join(errs[:]...)
}

// newReadNames are the lower-case names that a front proxy's assertion is read from.
func newReadNames(n HeaderNames) (HeaderNames, error) {
	if n.empty() {
		n = HeaderNames{Username: []string{remoteUser}, Group: []string{remoteGroup}, ExtraPrefix: []string{remoteExtra}}
	}
	low, err := n.lower()
	if err == nil && len(low.Username) == 0 {
		err = errors.New("there is none for the user")
	}
	return low, err
}

// nameSet is what follows from one value of Config.Target: what to send and what to strip.
type nameSet struct {
	target *HeaderNames
	// user and group are always the standard names; uid and extra are empty when the target trusts none.
	uid, extra string
	strip      stripper
	// err says why no identity can be sent to such a target: what it does not trust it would ignore, and take the request for our own.
	err error
}

// nameSet returns the set of the present target. Rebuilding it twice in a race is harmless: both are the same.
func (a *Authenticator) nameSet() *nameSet {
	var target *HeaderNames
	if a.cfg.Target != nil {
		target = a.cfg.Target()
	}
	if s := a.names.Load(); s != nil && s.target == target {
		return s
	}
	s := newNameSet(target, a.read)
	a.names.Store(s)
	return s
}

func newNameSet(target *HeaderNames, read HeaderNames) *nameSet {
	n := HeaderNames{
		Username: []string{remoteUser}, UID: []string{remoteUID}, Group: []string{remoteGroup}, ExtraPrefix: []string{remoteExtra},
	}
	s := &nameSet{target: target}
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

// preferred is the standard name when it is trusted, else the first that is: dropping an extra could drop a limit on what its user may do.
func preferred(trusted []string, standard string) string {
	if len(trusted) == 0 || slices.Contains(trusted, standard) {
		if len(trusted) == 0 {
			return ""
		}
		return standard
	}
	return trusted[0]
}
