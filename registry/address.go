package registry

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// refusal says why an address may not be dialled, or "". Whoever may write an EndpointSlice or a Service chooses these addresses, and with
// them what receives our client certificate, which can be any user. Loopback and link-local addresses (the cloud's metadata service among
// them) are this machine's own, not the cluster's.
func (o *Options) refusal(host string, port int32) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return o.refusalIP(addr, port)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case name == "":
		return "the name is empty"
	case name == "localhost" || strings.HasSuffix(name, ".localhost") || name == "localhost.localdomain":
		if !o.AllowLoopback {
			return host + " is a loopback name"
		}
	case numeric(name[strings.LastIndexByte(name, '.')+1:]):
		// No top-level domain is a number, but some resolvers read "127.1" and "0x7f000001" as addresses.
		return host + " is a number, not a DNS name"
	}
	return ""
}

func (o *Options) refusalIP(addr netip.Addr, port int32) string {
	addr = addr.Unmap().WithZone("")
	text := addr.String()
	switch {
	case addr.IsUnspecified():
		return text + " is the unspecified address"
	case addr.IsMulticast():
		return text + " is a multicast address"
	case addr.IsLinkLocalUnicast():
		return text + " is a link-local address"
	case addr.IsLoopback() && !o.AllowLoopback:
		return text + " is a loopback address"
	}
	if port > 0 && port <= 65535 && slices.Contains(o.Self, netip.AddrPortFrom(addr, uint16(port))) {
		return netip.AddrPortFrom(addr, uint16(port)).String() + " is this server itself"
	}
	return ""
}

// numeric reports whether a label would be read as a number by inet_aton.
func numeric(label string) bool {
	if label == "" {
		return false
	}
	if _, err := strconv.ParseUint(label, 10, 64); err == nil {
		return true
	}
	hex, ok := strings.CutPrefix(label, "0x")
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(hex, 16, 64)
	return hex == "" || err == nil
}
