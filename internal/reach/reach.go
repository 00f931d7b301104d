// Package reach decides which addresses may be dialled for a backend, and dials them.
//
// It is the only such check: live traffic, probes, fetches of documents and upgrades all dial with
// Rules.Dial, directly or through an egress proxy, and the registry refuses early, by the same
// rules, what it can. Everything here may be called by any goroutine.
package reach

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Rules say what may be dialled. A writer of EndpointSlices or Services chooses the addresses of backends, and so which
// servers receive our client certificate, with which we can act as any user. Loopback and link-local addresses are this
// machine's, not the cluster's, and the metadata services of clouds give credentials to every caller on this machine.
// The zero value refuses all of them.
type Rules struct {
	// AllowLoopback allows loopback (--allow-loopback-backends, and dir:). An egress proxy then also gets names.
	AllowLoopback bool
	// Operator says that the operator has chosen the addresses, as the local apiserver's: only Self is refused.
	Operator bool
	// Self are the addresses on which this process listens: requests would loop. IPv4 is not mapped; none has a zone.
	Self []netip.AddrPort
	// Via dials through an egress proxy. Nil means directly. It may outlast its context, as the
	// gRPC dialer does, by up to 30 s, and no longer: probes and requests do not wait for it.
	Via func(ctx context.Context, network, address string) (net.Conn, error)
}

// Refusal returns why a host must not be dialled, or "". Dial checks again what a name resolves to: that may change.
func (r *Rules) Refusal(host string, port int32) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return r.refusalIP(addr, port)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case name == "":
		return "the name is empty"
	case !r.AllowLoopback &&
		(name == "localhost" || strings.HasSuffix(name, ".localhost") || name == "localhost.localdomain"):
		return host + " is a loopback name"
	case numeric(name[strings.LastIndexByte(name, '.')+1:]):
		// No TLD is a number, but some resolvers read "127.1" and "0x7f000001" as addresses.
		return host + " is a number, not a DNS name"
	}
	return ""
}

func (r *Rules) refusalIP(addr netip.Addr, port int32) string {
	addr = addr.Unmap().WithZone("")
	if why := r.refusalOf(addr, port); why != "" {
		return addr.String() + why
	}
	for _, inner := range embedded(addr) {
		if why := r.refusalOf(inner, port); why != "" {
			return fmt.Sprintf("%s (%s)%s", addr, inner, why)
		}
	}
	return ""
}

func (r *Rules) refusalOf(addr netip.Addr, port int32) string {
	switch {
	case port > 0 && port <= 65535 && slices.Contains(r.Self, netip.AddrPortFrom(addr, uint16(port))):
		return fmt.Sprintf(":%d is this server itself", port)
	case r.Operator:
		return ""
	case addr.IsUnspecified():
		return " is the unspecified address"
	case addr.IsMulticast():
		return " is a multicast address"
	case addr.IsLinkLocalUnicast():
		return " is a link-local address"
	case addr.IsLoopback() && !r.AllowLoopback:
		return " is a loopback address"
	case clouds(addr):
		return " is an address of the cloud's own services"
	}
	return ""
}

// clouds reports whether an address is a cloud's metadata or wire server, if not link-local.
func clouds(addr netip.Addr) bool {
	switch addr.String() {
	case "168.63.129.16", // Azure's wire server
		"100.100.100.200", // Alibaba
		"192.0.0.192",     // Oracle, in its first form
		"fd20:ce::254":    // Google
		return true
	}
	// AWS uses fd00:ec2::/32: metadata at ::254, and others that return credentials (EKS, ::23).
	return netip.MustParsePrefix("fd00:ec2::/32").Contains(addr)
}

// embedded returns the IPv4 addresses that translators or tunnels may derive from an IPv6 address.
func embedded(addr netip.Addr) []netip.Addr {
	if addr.Is4() {
		return nil
	}
	b := addr.As16()
	at := func(places ...[4]int) (list []netip.Addr) {
		for _, p := range places {
			a := netip.AddrFrom4([4]byte{b[p[0]], b[p[1]], b[p[2]], b[p[3]]})
			if !a.IsUnspecified() { // not an address: the rest of a prefix, or a suffix
				list = append(list, a)
			}
		}
		return list
	}
	last := [4]int{12, 13, 14, 15}
	switch head := [12]byte(b[:]); {
	case head == [12]byte{}, // IPv4-compatible (RFC 4291 §2.5.5.1)
		head == [12]byte{8: 0xff, 9: 0xff},          // IPv4-translated (RFC 7915 §2.1)
		head == [12]byte{1: 0x64, 2: 0xff, 3: 0x9b}: // NAT64 (RFC 6052 §2.1)
		return at(last)
	case [6]byte(b[:]) == [6]byte{0, 0x64, 0xff, 0x9b, 0, 0x01}:
		// Local-use NAT64 (RFC 8215), whose prefix has 48, 56, 64 or 96 bits (RFC 6052 §2.2).
		return at(last, [4]int{6, 7, 9, 10}, [4]int{7, 9, 10, 11}, [4]int{9, 10, 11, 12})
	case [2]byte(b[:]) == [2]byte{0x20, 0x02}: // 6to4 (RFC 3056 §2)
		return at([4]int{2, 3, 4, 5})
	}
	return nil
}

// numeric reports whether a label would be read as a number by inet_aton.
func numeric(label string) bool {
	_, notDecimal := strconv.ParseUint(label, 10, 64)
	hex, prefixed := strings.CutPrefix(label, "0x")
	_, notHex := strconv.ParseUint(cmp.Or(hex, "0"), 16, 64) // "0x" is zero
	return notDecimal == nil || prefixed && notHex == nil
}

func (r *Rules) check(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("checking the address of a backend: %w", err)
	}
	if why := r.refusalIP(a.Addr(), int32(a.Port())); why != "" {
		return fmt.Errorf("the address is refused: %s", why)
	}
	return nil
}

// attemptDelay is how long one address of a name has to answer before the next one is tried, too (RFC 8305 §5). net
// gives each at least 2 s, a probe's whole dial: a name whose first address has vanished would be unreachable.
const attemptDelay = 250 * time.Millisecond
const maxTried = 16 // limits the addresses of a name: who answers for it may have us dial thousands, of anybody

// Dial connects to an address, checked after resolution. Of a name with several the first that answers is used.
// Addresses that an egress proxy resolves cannot be checked here, so names are resolved here and the proxy gets the
// address. Without AllowLoopback, a name that only the proxy can resolve is unreachable: it may be the proxy itself.
func (r *Rules) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialling: %w", err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return r.literal(ctx, network, address)
	}
	if r.Via != nil && r.AllowLoopback {
		return r.via(ctx, network, address)
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err} // as net's
	}
	return first(ctx, nil, len(found), func(ctx context.Context, i int) (net.Conn, error) {
		return r.literal(ctx, network, net.JoinHostPort(found[i].Unmap().String(), port))
	})
}

func (r *Rules) literal(ctx context.Context, network, address string) (net.Conn, error) {
	if r.Via == nil {
		d := net.Dialer{Control: func(_, to string, _ syscall.RawConn) error { return r.check(to) }}
		return d.DialContext(ctx, network, address) //nolint:wrapcheck // net's error, which says all
	}
	if err := r.check(address); err != nil {
		return nil, err
	}
	return r.via(ctx, network, address)
}

func (r *Rules) via(ctx context.Context, network, address string) (net.Conn, error) {
	return first(ctx, ctx.Done(), 1, func(ctx context.Context, _ int) (net.Conn, error) {
		return r.Via(ctx, network, address)
	})
}

// first makes up to n dials, the next one when one has failed or has not answered for attemptDelay, and returns the
// first connection. If all fail, it returns the error of the first dial. When done delivers, it waits for none.
func first(
	ctx context.Context, done <-chan struct{}, n int, dial func(ctx context.Context, i int) (net.Conn, error),
) (net.Conn, error) {
	n = min(n, maxTried)
	dialling, cancel := context.WithCancel(ctx) // ends a little after ctx
	defer cancel()                              // ends the other dials
	conns, errs := make(chan net.Conn, n), make([]error, n)
	begun, ended := 0, 0
	defer func() {
		go func() { // ends with the dials
			for range begun - ended {
				if late := <-conns; late != nil {
					_ = late.Close() // nobody has used it
				}
			}
		}()
	}()
	for next := time.NewTimer(0); ended < n; {
		select {
		case <-next.C:
			i := begun
			begun++
			go func() { // ends with its dial; errs[i] is read after the channel has delivered
				var c net.Conn
				c, errs[i] = dial(dialling, i)
				conns <- c
			}()
			if begun < n {
				next.Reset(attemptDelay)
			}
		case c := <-conns:
			if ended++; c != nil {
				return c, nil
			}
			if begun < n {
				next.Reset(0)
			}
		case <-done:
			return nil, ctx.Err() //nolint:wrapcheck // the caller's
		}
	}
	return nil, errs[0]
}

// Host returns the Host of requests to an address: of a name, the default port of https is left out (RFC 9110, 4.2.2),
// without which some servers alone know it. Of a Service's address it is there, as kube-aggregator sends it.
func Host(address string) string {
	name, named := strings.CutSuffix(address, ":443")
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); !named || err == nil {
		return address
	}
	return name
}

// Handshake does a TLS handshake as a client. An empty name in c becomes the address's. On an error it closes raw. A
// server's certificate can cause a panic there (CVE-2025-58188), which would end the process: here it is such an error.
func Handshake(ctx context.Context, raw net.Conn, at string, c *tls.Config, log *slog.Logger) (_ *tls.Conn, err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("handshake panicked", "endpoint", at, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("handshake panicked: %v", v)
		}
		if err != nil {
			_ = raw.Close()
			const most = 1 << 10 // crypto/tls quotes a certificate's bad URI, of megabytes, to each request that waits
			if text := err.Error(); len(text) > most && errors.Unwrap(err) == nil {
				err = errors.New(strings.ToValidUTF8(text[:most], ""))
			}
		}
	}()
	host, _, _ := net.SplitHostPort(at)
	c.ServerName = cmp.Or(c.ServerName, host)
	conn := tls.Client(raw, c)
	return conn, conn.HandshakeContext(ctx)
}

// Exhausted reports whether a dial failed for too many open files here: that says nothing about the address. Where a
// name was not looked up for that, net's error has only the words, and those of ENFILE begin alike.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.As(err, new(*net.DNSError)) && strings.Contains(err.Error(), syscall.EMFILE.Error())
}
