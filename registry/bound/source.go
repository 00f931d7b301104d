package bound

import (
	"net/netip"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Source identifies who holds a place. Equal Sources are the same source.
type Source struct {
	// User is the user's name. If empty, the place counts for the request's address.
	User string
	// Address is a stranger's address: an IPv4 address, or the /64 of an IPv6 address, which one
	// subscriber gets.
	Address string
	// Conn is the address and port of a stranger's connection. A connection may hold a quarter of
	// its address's share: behind a load balancer or NAT all strangers have one address. Empty
	// means that connections are not distinguished.
	Conn string
}

// Caller returns the Source of a request from remote (address and port) by u. Without a user, or
// with the anonymous one, it is a stranger's.
func Caller(u user.Info, remote string) Source {
	if u != nil && u.GetName() != user.Anonymous {
		return Source{User: u.GetName()}
	}
	return Stranger(remote)
}

// AnyConn returns s without its connection: all connections of an address are one source.
func (s Source) AnyConn() Source {
	s.Conn = ""
	return s
}

// Stranger returns the Source of a request from remote (address and port) without a known user.
func Stranger(remote string) Source {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return Source{Address: remote}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return Source{Address: ip.String(), Conn: remote}
	}
	prefix, _ := ip.Prefix(64) // an IPv6 address has 128 bits
	return Source{Address: prefix.String(), Conn: remote}
}

// share is one of the keys under which a Source is counted. The key may hold one of parts equal
// parts of a limit.
type share struct {
	key   Source
	parts int64
}

// quarter is the number of shares of a limit: one source may hold one.
const quarter = 4

// shares returns the keys of s. The second is empty if there is only one.
func (s Source) shares() [2]share {
	list := [2]share{{Source{User: s.User, Address: s.Address}, quarter}}
	if s.Conn != "" {
		list[1] = share{Source{Conn: s.Conn}, quarter * quarter}
	}
	return list
}

// of returns how many of most one key may hold: at least one.
func (p *share) of(most int64) int64 { return max(1, most/p.parts) }
