package front

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/metric"
)

const (
	// fewest is what each port has in any case: an operator, and a load balancer's probes.
	fewest = 8
	// tellStall is how often a full port is told at most.
	tellStall = time.Minute
)

// Address says where a port listens, and for how many connections.
type Address struct {
	// Host is empty for all addresses of this machine. Port 0 is any free one.
	Host string
	Port int
	// Name is the label "port" of the metrics.
	Name string
	// MaxConnections may be open at once. Zero: Share of the descriptors that this process may
	// have, and a few in any case.
	//
	// Descriptors are what strangers can take all of, by opening connections and doing nothing.
	// Without a bound, dials to backends and probes would fail with theirs, and every APIService
	// would be found unavailable.
	MaxConnections int
	Share          float64
	// Logger is told when connections wait. Nil discards.
	Logger *slog.Logger
	// Metrics is where fairlead_connections and fairlead_accept_stalls_total are registered. Nil:
	// unregistered.
	Metrics prometheus.Registerer
}

// Listener bounds the connections of a port: beyond it they wait in the kernel's queue, and a load
// balancer's probes with them, so that it looks elsewhere.
type Listener struct {
	net.Listener
	log  *slog.Logger
	port string

	places chan struct{} // one for each connection
	open   atomic.Int64
	stalls prometheus.Counter
	told   time.Time // Accept's own, which is called by one goroutine

	end  sync.Once
	done chan struct{} // closed by Close
}

// Listen opens a port. It is done for every port before anything is served, so that a port in use
// is a clear error.
func Listen(ctx context.Context, a Address) (*Listener, error) {
	most := a.MaxConnections
	if most == 0 {
		most = max(fewest, int(a.Share*float64(descriptorLimit())))
	}
	labels := prometheus.Labels{"port": a.Name}
	l := &Listener{
		log: a.Logger, port: a.Name, places: make(chan struct{}, most), done: make(chan struct{}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_accept_stalls_total", Help: "Times that a port took no new connection for a while: as many as are allowed were open, or accepting failed.",
			ConstLabels: labels,
		}),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_connections", Help: "Open connections of clients, by port.", ConstLabels: labels,
	}, func() float64 { return float64(l.open.Load()) })
	err := metric.Register(a.Metrics, "connections", l.stalls, open)
	if err != nil {
		return nil, err
	}
	if l.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(a.Host, strconv.Itoa(a.Port))); err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	return l, nil
}

// Own are the addresses at which the port can be reached: a backend that resolves to one of them
// would be ourselves.
func (l *Listener) Own() ([]netip.AddrPort, error) {
	bound, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("reading the listener's address: %w", err)
	}
	if !bound.Addr().IsUnspecified() {
		return []netip.AddrPort{netip.AddrPortFrom(bound.Addr().Unmap().WithZone(""), bound.Port())}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}
	var own []netip.AddrPort
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, netip.AddrPortFrom(prefix.Addr().Unmap().WithZone(""), bound.Port()))
		}
	}
	return own, nil
}

// Accept waits for a place first.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	default:
		l.stalled("as many connections as are allowed are open", nil)
		select {
		case l.places <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		if !errors.Is(err, net.ErrClosed) {
			l.stalled("accepting connections fails", err) // net/http tries again in a while
		}
		return nil, err //nolint:wrapcheck // net/http looks at what it is
	}
	l.open.Add(1)
	leave := sync.OnceFunc(func() {
		l.open.Add(-1)
		<-l.places
	})
	return &placed{conn, leave}, nil
}

func (l *Listener) stalled(why string, err error) {
	l.stalls.Inc()
	if now := time.Now(); now.Sub(l.told) > tellStall {
		l.told = now
		l.log.Warn("new connections wait", "port", l.port, "open", l.open.Load(), "reason", why, "err", err)
	}
}

// Close also ends a waiting Accept.
func (l *Listener) Close() error {
	l.end.Do(func() { close(l.done) })
	return l.Listener.Close() //nolint:wrapcheck // this is the listener
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

// Wraps lets the engine read and write the socket: nothing is done to the bytes, and the place is
// given back by Close.
func (p *placed) Wraps() net.Conn { return p.Conn }
