package authn

import "strings"

// Pool is the kind of connection that a request leaves on: it decides what may be forwarded and who is believed at the other end.
type Pool uint8

// The pools. PoolRemote is the zero value and the strictest.
const (
	// PoolRemote leads to an extension server: it gets the identity and nothing that could be used to become the caller elsewhere.
	PoolRemote Pool = iota
	// PoolCertificate leads to the local apiserver and carries our proxy client certificate: it gets the identity in X-Remote-*, without Authorization.
	PoolCertificate
	// PoolProven leads to the local apiserver without a client certificate, for tokens that it lately accepted. They pass untouched.
	PoolProven
	// PoolUnproven is the same for anonymous requests and tokens not lately accepted. kube-apiserver answers an unauthenticated HTTP/2 request with
	// GOAWAY, so such requests must not share a connection with anybody's long-running one.
	PoolUnproven
)

// Strip reports whether a client's header or trailer field must not be forwarded over a pool: any field that could assert an identity (X-Remote-*, every
// name and prefix of our flags and of the target), however it is spelled, and what is secret or already used up. Underscores count as dashes, because
// CGI-like servers cannot tell them apart. The caller drops hop-by-hop fields itself.
func (a *Authenticator) Strip(name string, p Pool) bool {
	return a.nameSet().strip.match(name, p)
}

// stripper matches names without allocating. Its names are lower-case with dashes only.
type stripper struct {
	names, prefixes []string
	// first holds the first bytes of everything that may match, so that most names cost one look-up.
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

// matchSecret matches what proves or changes who the caller is. Its exact names pass to the local apiserver over the token pools, which do not assert
// anything: there the caller speaks for itself. Spelled with an underscore they mean nothing to kube-apiserver and may mean the same to others.
func matchSecret(name string, p Pool) bool {
	switch {
	case len(name) == len("authorization") && hasPrefix(name, "authorization"):
		return p == PoolRemote || p == PoolCertificate
	case len(name) == len("proxy-authorization") && hasPrefix(name, "proxy-authorization"):
		return true
	case hasPrefix(name, "impersonate-"):
		return p == PoolRemote
	case len(name) == len(fieldProtocol) && hasPrefix(name, fieldProtocol):
		return p == PoolRemote && strings.IndexByte(name, '_') >= 0 // the proper spelling is kept, less its token: see CutProtocol
	}
	return false
}

// hasPrefix reports whether name begins with prefix, which is lower-case and dashed, in any case and with underscores for dashes.
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
