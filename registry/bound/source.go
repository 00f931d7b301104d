package bound

import (
	"net/netip"
)

// Source is who holds a place. Equal Sources are the same one.
type Source struct {
	// User is who is known by name. Empty: nobody is known, and the place counts for where the request comes from.
	User string
	// Address is where a stranger comes from: an IPv4 address, or the /64 of an IPv6 address, which is what one subscriber gets.
	Address string
	// Conn is the connection of a stranger, as address and port. One connection holds at most a quarter of what its address may:
	// behind a balancer or a NAT all strangers have one address. Empty: connections are not told apart.
	Conn string
}

// Stranger is the Source of a request that comes from remote (address and port) and whose caller nobody knows.
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

// part is one of the keys that a Source counts under, and of how many equal parts of a bound it may hold one.
type part struct {
	key   Source
	parts int64
}

// quarter is the share of one source.
const quarter = 4

// parts returns the keys of s. The second is empty if there is one only.
func (s Source) parts() [2]part {
	list := [2]part{{Source{User: s.User, Address: s.Address}, quarter}}
	if s.Conn != "" {
		list[1] = part{Source{Conn: s.Conn}, quarter * quarter}
	}
	return list
}

// of is how much of most one key may hold: at least one place.
func (p *part) of(most int64) int64 { return max(1, most/p.parts) }
