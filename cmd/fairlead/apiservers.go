package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// ownDialTimeout is proxy/backend's: a SYN is sent again after 1 s and 3 s, two may get lost.
const ownDialTimeout = 4 * time.Second

// apiservers leads Fairlead's own watches and reviews to one of several local apiservers: to a healthy one, and away from one that hangs while another is well. A server that is stopped still accepts connections, and a review there would wait until its caller gives up.
type apiservers struct {
	// order are the addresses, those to be tried first in front. Never nil.
	order atomic.Pointer[[]string]

	// mu guards open. It is never held over I/O.
	mu   sync.Mutex
	open map[*ownConn]struct{}
}

func newAPIServers(addresses []string) *apiservers {
	s := &apiservers{open: make(map[*ownConn]struct{})}
	s.order.Store(&addresses)
	return s
}

// ownConn is a connection that leaves the set when it is closed.
type ownConn struct {
	net.Conn
	of      *apiservers
	address string
}

func (c *ownConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// dial connects to an address of ours. It fits rest.Config.Dial.
func (s *apiservers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: ownDialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // net's own, which wrap tells from others
	}
	c := &ownConn{Conn: conn, of: s, address: address}
	s.mu.Lock()
	s.open[c] = struct{}{}
	s.mu.Unlock()
	return c, nil
}

// wrap sends each request to the first server that can be connected to, under that server's own name: certificates of control plane nodes name their node, not
// the others.
func (s *apiservers) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (res *http.Response, err error) {
		for i, address := range *s.order.Load() {
			out := r.Clone(r.Context())
			out.URL.Host, out.Host = address, ""
			if i > 0 && r.Body != nil && r.Body != http.NoBody {
				if r.GetBody == nil {
					return nil, err
				}
				body, fault := r.GetBody()
				if fault != nil {
					return nil, errors.Join(err, fault)
				}
				out.Body = body
			}
			res, err = next.RoundTrip(out)
			if fault := new(net.OpError); !errors.As(err, &fault) || fault.Op != "dial" {
				return res, err //nolint:wrapcheck // a transport tells what it was told
			}
		}
		return nil, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// prefer puts the unhealthy last, and closes the connections to them. Where none is healthy nobody knows better, and all stays as it is.
func (s *apiservers) prefer(servers []registry.Endpoint) {
	var order, ill []string
	healthy := false
	for _, e := range servers {
		healthy = healthy || e.Health == registry.Healthy
		if e.Health == registry.Unhealthy {
			ill = append(ill, e.Address)
		} else {
			order = append(order, e.Address)
		}
	}
	if !healthy {
		return
	}
	order = append(order, ill...)
	s.order.Store(&order)
	for _, c := range s.connectedTo(ill) {
		_ = c.Close() // it is given up: what it could say helps nobody
	}
}

func (s *apiservers) connectedTo(addresses []string) []*ownConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*ownConn
	for c := range s.open {
		if slices.Contains(addresses, c.address) {
			list = append(list, c)
		}
	}
	return list
}
