package authn

import "strings"

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
	// PoolUnproven is the same for anonymous requests and other tokens. kube-apiserver answers an
	// unauthenticated HTTP/2 request with GOAWAY, so such requests must not share a connection with
	// long-running ones.
	PoolUnproven
	// PoolImpersonate leads to the local apiserver with a credential of this process that may
	// impersonate. It gets the identity in Impersonate-*, and of the caller's fields only those
	// that an extension server gets.
	PoolImpersonate
)

// Strip reports whether a client's header or trailer field must not be forwarded over a pool. It
// matches all fields that could assert an identity (X-Remote-*, every name and prefix of our flags
// and of the target), in any spelling, and fields that are secret or already used. Underscores
// count as dashes, because CGI-like servers treat them alike. The caller drops hop-by-hop fields
// itself.
func (a *Authenticator) Strip(name string, p Pool) bool {
	return a.nameSet().strip.match(name, p)
}

// stripper matches names without allocating. Its names are in lower case, with dashes only.
type stripper struct {
	names, prefixes []string
	// first holds the first byte of all names and prefixes, so that most fields cost one look-up.
	first [256]bool
}

func newStripper(sets ...HeaderNames) stripper {
	s := stripper{prefixes: []string{"x-remote-"}}
	for _, n := range sets {
		for _, names := range [][]string{n.Username, n.UID, n.Group} {
			for _, name := range names {
				s.names = append(s.names, dashed(name))
			}
		}
		for _, p := range n.ExtraPrefix {
			s.prefixes = append(s.prefixes, dashed(p))
		}
	}
	for _, list := range [][]string{s.names, s.prefixes, {"authorization", "proxy-authorization", "impersonate-", "sec-"}} {
		for _, name := range list {
			s.first[name[0]] = true
			s.first[name[0]-'a'+'A'] = s.first[name[0]-'a'+'A'] || 'a' <= name[0] && name[0] <= 'z'
		}
	}
	return s
}

func dashed(name string) string { return strings.ReplaceAll(name, "_", "-") }

func (s *stripper) match(name string, p Pool) bool {
	if name == "" || !s.first[name[0]] {
		return false
	}
	for _, prefix := range s.prefixes {
		if hasPrefix(name, prefix) {
			return true
		}
	}
	for _, n := range s.names {
		if len(name) == len(n) && hasPrefix(name, n) {
			return true
		}
	}
	return matchSecret(name, p)
}

// matchSecret matches fields that prove or change the caller's identity. In their exact spelling
// they may pass to the local apiserver over the token pools, where the caller speaks for itself.
// kube-apiserver ignores spellings with underscores, but other servers may not.
func matchSecret(name string, p Pool) bool {
	asserted := p == PoolRemote || p == PoolImpersonate
	switch {
	case len(name) == len("authorization") && hasPrefix(name, "authorization"):
		return asserted || p == PoolCertificate
	case len(name) == len("proxy-authorization") && hasPrefix(name, "proxy-authorization"):
		return true
	case hasPrefix(name, "impersonate-"):
		return asserted
	case len(name) == len(fieldProtocol) && hasPrefix(name, fieldProtocol):
		return asserted && strings.IndexByte(name, '_') >= 0 // exact spelling: see CutProtocol
	}
	return false
}

// hasPrefix reports whether name has a prefix, ignoring case and treating underscores as dashes.
// The prefix must be in lower case with dashes.
func hasPrefix(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c == '_' {
			c = '-'
		}
		if c != prefix[i] {
			return false
		}
	}
	return true
}
