package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Descriptors are what strangers can take all of, by opening connections and doing nothing. Without a bound, dials to backends and probes would fail with theirs, and
// every APIService would be found unavailable. So a part stays for ourselves.
const (
	// frontShare and adminShare are the parts of RLIMIT_NOFILE that client connections may take; the rest is for backends, probes and files.
	frontShare = 3. / 4
	adminShare = 1. / 16
	// fewest is what each port has in any case: an operator, and a load balancer's probes.
	fewest = 8
	// tellStall is how often a full port is told at most.
	tellStall = time.Minute
)

// connections bounds the connections of a port: beyond it they wait in the kernel's queue, and a load balancer's probes with them, so that it looks elsewhere.
type connections struct {
	net.Listener
	log  *slog.Logger
	port string // front or admin

	places chan struct{} // one for each connection
	open   atomic.Int64
	stalls prometheus.Counter
	told   time.Time // Accept's own, which is called by one goroutine

	end  sync.Once
	done chan struct{} // closed by Close
}

// bound wraps the listener of a port. most 0: its share of the descriptors.
func (d *door) bound(l net.Listener, port string, most int, share float64) (net.Listener, error) {
	if most == 0 {
		most = max(fewest, int(share*float64(descriptorLimit())))
	}
	c := &connections{
		Listener: l, log: d.log, port: port, places: make(chan struct{}, most), done: make(chan struct{}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_accept_stalls_total", Help: "Times that a port took no new connection for a while: as many as are allowed were open, or accepting failed.",
			ConstLabels: prometheus.Labels{"port": port},
		}),
	}
	for _, m := range []prometheus.Collector{c.stalls, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_connections", Help: "Open connections of clients, by port.", ConstLabels: prometheus.Labels{"port": port},
	}, func() float64 { return float64(c.open.Load()) })} {
		if err := d.metrics.Register(m); err != nil {
			return nil, fmt.Errorf("registering connection metrics: %w", err)
		}
	}
	return c, nil
}

// Accept waits for a place first.
func (c *connections) Accept() (net.Conn, error) {
	select {
	case c.places <- struct{}{}:
	default:
		c.stalled("as many connections as are allowed are open", nil)
		select {
		case c.places <- struct{}{}:
		case <-c.done:
			return nil, net.ErrClosed
		}
	}
	conn, err := c.Listener.Accept()
	if err != nil {
		<-c.places
		if !errors.Is(err, net.ErrClosed) {
			c.stalled("accepting connections fails", err) // net/http tries again in a while
		}
		return nil, err //nolint:wrapcheck // net/http looks at what it is
	}
	c.open.Add(1)
	leave := sync.OnceFunc(func() {
		c.open.Add(-1)
		<-c.places
	})
	return &placed{conn, leave}, nil
}

func (c *connections) stalled(why string, err error) {
	c.stalls.Inc()
	if now := time.Now(); now.Sub(c.told) > tellStall {
		c.told = now
		c.log.Warn("new connections wait", "port", c.port, "open", c.open.Load(), "reason", why, "err", err)
	}
}

// Close also ends a waiting Accept.
func (c *connections) Close() error {
	c.end.Do(func() { close(c.done) })
	return c.Listener.Close() //nolint:wrapcheck // this is the listener
}

// placed is a connection that gives its place back.
type placed struct {
	net.Conn
	leave func()
}

func (p *placed) Close() error {
	defer p.leave()
	return p.Conn.Close() //nolint:wrapcheck // this is the connection
}

// Wraps lets the frame lane read and write the socket: nothing is done to the bytes, and the place is given back by Close.
func (p *placed) Wraps() net.Conn { return p.Conn }
