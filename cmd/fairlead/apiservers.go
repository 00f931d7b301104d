package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/registry"
)

// apiservers routes Fairlead's own watches and reviews to a healthy local apiserver, and away from one that hangs while
// another is healthy. A suspended process still accepts connections, and a review would wait for its timeout.
type apiservers struct {
	order atomic.Pointer[[]string]  // the addresses, preferred ones first. Never nil
	first bool                      // the first named comes back to its place; else the last used one stays preferred
	fled  atomic.Pointer[time.Time] // when a request last failed at the preferred one. Nil means never
	alone atomic.Bool               // only one is healthy
	open  sync.Map                  // :: *ownConn → nothing
}

type ownConn struct {
	net.Conn
	of      *apiservers
	address string
}

func (c *ownConn) Close() error {
	c.of.open.Delete(c)
	return c.Conn.Close()
}

func (c *ownConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.reason(err)
}

func (c *ownConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.reason(err)
}

// reason reports a connection that was left as reset: clients of the API ask again then. With net.ErrClosed they fail.
func (c *ownConn) reason(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("leaving local apiserver %s: %w", c.address, syscall.ECONNRESET)
	}
	return err
}

// dial connects to one of our addresses. It fits rest.Config.Dial.
func (s *apiservers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	const timeout = 4 * time.Second // proxy/backend's: a SYN is sent again after 1 s and 3 s, so two may be lost
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // wrap looks for net's own error
	}
	own := &ownConn{conn, s, address}
	s.open.Store(own, nil)
	return own, nil
}

// wrap sends each request to the first server that accepts a connection, under the only name in its certificate. If it
// fails or is refused there, later ones go elsewhere at once: probes notice a hang after a Lease of ours has ended.
func (s *apiservers) wrap(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (res *http.Response, err error) {
		for i, address := range *s.order.Load() {
			out := r.Clone(r.Context())
			out.URL.Host, out.Host = address, ""
			if i > 0 && r.Body != nil && r.Body != http.NoBody {
				if r.GetBody == nil {
					return nil, err
				}
				if out.Body, err = r.GetBody(); err != nil {
					return nil, err //nolint:wrapcheck // the caller's
				}
			}
			res, err = next.RoundTrip(out)
			if fault := new(net.OpError); r.Context().Err() == nil && errors.As(err, &fault) && fault.Op == "dial" {
				continue
			}
			failed := err != nil && !errors.Is(r.Context().Err(), context.Canceled) // by its caller: no server's fault
			refused := err == nil && res.StatusCode == http.StatusUnauthorized      // it may not know a new key yet
			if now := s.order.Load(); (failed || refused) && (*now)[0] == address && !s.alone.Load() {
				s.fled.Store(new(time.Now()))
				s.order.CompareAndSwap(now, new(append(slices.Clip((*now)[1:]), address)))
			}
			return res, err //nolint:wrapcheck // a transport passes errors on
		}
		return nil, err
	})
}

// prefer puts healthy servers first, those that leave behind the others, and unhealthy ones last,
// to which it closes connections, unless none is healthy.
func (s *apiservers) prefer(servers []registry.Endpoint) {
	const hang = 12 * time.Second // until probes have noticed one
	at, back := (*s.order.Load())[0], s.first && time.Since(ptr.Deref(s.fled.Load(), time.Time{})) > hang
	rank := func(e registry.Endpoint) int {
		switch {
		case e.Health != registry.Healthy:
			return 3 + int(e.Health) // unprobed, unhealthy
		case e.Terminating:
			return 2
		case e.Address == at && !back: // no watch of ours goes back in time
			return 0
		}
		return 1
	}
	byRank := func(a, b registry.Endpoint) int { return rank(a) - rank(b) }
	servers = slices.SortedStableFunc(slices.Values(servers), byRank)
	well := slices.IndexFunc(servers, func(e registry.Endpoint) bool { return e.Health != registry.Healthy })
	if s.alone.Store(well == 1); len(servers) == 0 || well == 0 {
		return
	}
	order, leave := make([]string, 0, len(servers)), map[string]bool{}
	for _, e := range servers {
		order, leave[e.Address] = append(order, e.Address), e.Health == registry.Unhealthy
	}
	s.order.Store(&order) // before closing: who asks again must come to another one
	for c := range s.open.Range {
		if own := c.(*ownConn); leave[own.address] {
			_ = own.Close()
		}
	}
}
