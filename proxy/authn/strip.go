package authn

import (
	"slices"
	"strings"
)

// Pool is the kind of connection over which a request is sent. It decides which fields are
// forwarded, and how the identity is asserted.
type Pool uint8

// The pools. PoolRemote is the zero value and the strictest.
const (
	// PoolRemote leads to an extension server. It gets the identity, and nothing with which it
	// could act as the caller elsewhere.
	PoolRemote Pool = iota
	// PoolCertificate leads to the local apiserver with our proxy client certificate. It gets the
	// identity in X-Remote-*, without Authorization.
	PoolCertificate
	// PoolProven leads to the local apiserver without a client certificate, for recently accepted
	// tokens, which are forwarded unchanged.
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

// stripper has the rules for names by the first byte, as plain returns it: most fields cost one
// look-up, because no name begins as they do.
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
	// These prove or change the caller's identity. In their exact spelling they may pass to the
	// local apiserver over the token pools, where the caller speaks for itself. kube-apiserver
	// ignores spellings with underscores, but other servers may not.
	add(all, false, "proxy-authorization")
	add(all[:3], false, "authorization")
	add(all[:2], true, "impersonate-")
	add(all[:2], false, fieldProtocol)
	return s
}

// hasPrefix reports whether name has a prefix, ignoring case and treating underscores as dashes.
// The prefix must be in lower case with dashes.
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
