package reach

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// attemptDelay is how long one address of a name has to answer before the next one is tried, too
// (RFC 8305 §5). net gives each at least 2 s, as long as a probe's whole dial: a name would be
// unreachable whose first address has vanished.
const attemptDelay = 250 * time.Millisecond

// Dial connects to an address, which is checked after resolution. Of a name with several addresses
// the first that answers is used.
//
// Addresses that an egress proxy resolves cannot be checked here, so names are resolved here and
// the proxy gets the address. Without AllowLoopback, a name that only the proxy can resolve is
// unreachable: it could resolve to the proxy's own machine.
func (r *Rules) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dialling: %w", err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return r.literal(ctx, network, address)
	}
	if r.Via != nil && r.AllowLoopback {
		return r.Via(ctx, network, address)
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err} // as net's
	}
	return first(ctx, len(found), func(ctx context.Context, i int) (net.Conn, error) {
		return r.literal(ctx, network, net.JoinHostPort(found[i].Unmap().String(), port))
	})
}

// literal dials a literal address, unless it is refused.
func (r *Rules) literal(ctx context.Context, network, address string) (net.Conn, error) {
	if r.Via == nil {
		d := net.Dialer{
			ControlContext: func(_ context.Context, _, to string, _ syscall.RawConn) error { return r.check(to) },
		}
		return d.DialContext(ctx, network, address) //nolint:wrapcheck // net's error, which says all
	}
	if err := r.check(address); err != nil {
		return nil, err
	}
	return r.Via(ctx, network, address)
}

// first makes up to n dials, the next one when one has failed or has not answered for attemptDelay,
// and returns the first connection. If all fail, it returns the error of the first dial.
func first(ctx context.Context, n int, dial func(ctx context.Context, i int) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other dials
	conns, errs := make(chan net.Conn, n), make([]error, n)
	begun, ended := 0, 0
	for next := time.NewTimer(0); ended < n; {
		select {
		case <-next.C:
			i := begun
			begun++
			go func() { // ends with its dial; errs[i] is read after the channel has delivered
				var c net.Conn
				c, errs[i] = dial(ctx, i)
				conns <- c
			}()
			if begun < n {
				next.Reset(attemptDelay)
			}
		case c := <-conns:
			if ended++; c != nil {
				go func() { // ends with the dials
					for range begun - ended {
						if late := <-conns; late != nil {
							_ = late.Close() // nobody has used it
						}
					}
				}()
				return c, nil
			}
			if begun < n {
				next.Reset(0)
			}
		}
	}
	return nil, errs[0]
}
