package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

const minConnections = 8             // the least limit of a port: for an operator, and a load balancer's probes
const stallLogInterval = time.Minute // the least time between logs about a full port, and its counts while it stays so

// Address configures a port (process.listen in cmd/fairlead).
type Address struct {
	Host   string // empty for all addresses of this machine
	Port   int    // 0 means any free port
	Name   string // the value of the label "port" in metrics
	Shared bool   // lets other processes of the same user listen, too, see HandOver
	// MaxConnections limits open connections, or strangers could use up all descriptors. Zero means Connections(Share).
	MaxConnections int
	Share          float64
	metric.Sinks   // connections that wait
}

// Listener limits a port's connections. Others wait in the kernel's queue, so a load balancer takes another replica.
type Listener struct {
	net.Listener
	log  *slog.Logger
	port string

	places  chan struct{} // one for each connection
	seats   bound.Places  // the same by clients' addresses, see seat
	crowded chan struct{} // from a connection that takes the place of one without a seat
	open    atomic.Int64
	stalls  prometheus.Counter
	*handshakes
	room            func(of *hold.Source) // sends idle clients of an address away, of nil any. Nil sends none
	roomAt, ofOneAt atomic.Int64          // when it last has so, in seconds
	known           []string              // the sharers when this one began to listen. Nil: the port is not shared
	logged          time.Time             // of the last log; used by Accept's goroutine only

	end  sync.Once
	done chan struct{} // closed by Close
}

// Connections returns how many may be open for a share of descriptors, and of memory: one has 26 KB, TLS up to 17 more.
func Connections(share float64) int {
	memory := debug.SetMemoryLimit(-1) // math.MaxInt64 if there is none
	return max(minConnections, min(Descriptors(share), int(share*float64(memory)/(48<<10))))
}

// Descriptors returns a share of the files and sockets that this process may have open, at least minConnections.
func Descriptors(share float64) int {
	const most = 1 << 20 // a million connections take about 40 GB: other limits come first
	l := syscall.Rlimit{Cur: most}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return max(minConnections, int(share*float64(min(l.Cur, most))))
}

// Listen opens a port. Open all ports before serving any, so that a port in use is a clear error.
func Listen(ctx context.Context, a Address) (_ *Listener, err error) {
	most := cmp.Or(a.MaxConnections, Connections(a.Share))
	labels := prometheus.Labels{"port": a.Name}
	l := &Listener{
		log:        a.Log(),
		port:       a.Name,
		handshakes: newHandshakes(),
		places:     make(chan struct{}, most),
		crowded:    make(chan struct{}),
		seats:      bound.Places{Lend: true}, // to one load balancer
		done:       make(chan struct{}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_accept_stalls_total",
			Help: "Times that a port accepted no new connection for a while: its limit was reached, " +
				"or accepting failed. One that lasts counts once a minute.",
			ConstLabels: labels,
		}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_connections", Help: "Open connections of clients, by port.", ConstLabels: labels,
	}, func() float64 { return float64(l.open.Load()) })
	failed := prometheus.NewDesc("fairlead_tls_handshake_errors_total",
		"TLS handshakes of clients that failed, by cause (docs/operations.md).", []string{"cause"}, labels)
	metric.Register(a.Metrics, l.stalls, open, metric.Gauges{
		Type: prometheus.CounterValue,
		All:  []*prometheus.Desc{failed},
		Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
			for _, c := range l.all() {
				gauge(failed, c.count, c.name)
			}
		},
	})
	// A client may miss 20 of TCP's keepalives, 15 s apart: it may be away for 5 min 15 s, as at kube-apiserver, which
	// first asks after 3 min (tcpKeepAliveListener), when a NAT may have forgotten the connection.
	c := &net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Count: 20}}
	if a.Shared {
		c.Control = share
		c.SetMultipathTCP(false) // Go's default, for which the kernel takes no program
	}
	if l.Listener, err = c.Listen(ctx, "tcp", net.JoinHostPort(a.Host, strconv.Itoa(a.Port))); err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	if a.Shared {
		l.choose(0)
		l.known = l.sharers()
	}
	return l, nil
}

// Use returns which share of its connections the port has open. One address alone gets all but a 32nd: see seat.
func (l *Listener) Use() float64 { return float64(l.open.Load()) / float64(cap(l.places)) }

// Own returns the addresses of the port: a backend that resolves to one of them would be this process itself.
func (l *Listener) Own() ([]netip.AddrPort, error) {
	at := l.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // see Listen
	if !at.Addr().IsUnspecified() {
		return []netip.AddrPort{netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing this machine's addresses: %w", err)
	}
	own := []netip.AddrPort{at, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())} // dials come here, too
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, netip.AddrPortFrom(prefix.Addr().Unmap().WithZone(""), at.Port()))
		}
	}
	return own, nil
}

// Accept waits for a place before it accepts a connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	default:
		if err := l.wait(); err != nil {
			return nil, err
		}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		if !errors.Is(err, net.ErrClosed) {
			l.stalled("accepting connections fails", err) // net/http retries after a pause
		}
		if errors.Is(err, syscall.EMFILE) { // others than clients have descriptors, and each idle client one
			l.makeRoom(&l.roomAt, nil)
		}
		return nil, err //nolint:wrapcheck // net/http inspects the error
	}
	l.open.Add(1)
	direct := h2.Direct(conn)
	return &placed{Conn: conn, in: direct, out: direct, leave: func() { l.open.Add(-1); <-l.places }}, nil
}

// seat counts a connection for its client's address, which has all places but a 32nd. Beyond, the connection waits for
// idle ones of the address, on a place that it gives back when no other is left: one is kept for who comes next.
func (l *Listener) seat(ctx context.Context, c *placed, of *plain) bool {
	for leave, pause := c.leave, lookEvery; ; pause = min(2*pause, time.Second) {
		if seat, ok := l.seats.Take(of.from, 1, int64(cap(l.places))); ok {
			c.leave = func() { seat.Leave(); leave() }
			return true
		}
		if pause == lookEvery {
			l.stalls.Inc() // the port is as good as full
		}
		l.makeRoom(&l.ofOneAt, of.source)
		select {
		case <-time.After(pause):
			continue
		case <-l.crowded:
			l.open.Add(-1)
			c.leave = func() {}
		case <-ctx.Done():
		}
		_ = c.Conn.Close() // now: Close would keep the place for a moment
		return false
	}
}

// makeRoom sends idle clients away, once a second: others want their places.
func (l *Listener) makeRoom(at *atomic.Int64, of *hold.Source) {
	if now := time.Now().Unix(); at.Swap(now) != now && l.room != nil {
		l.room(of)
	}
}

func (l *Listener) wait() error {
	for n, again := 0, time.After(lookEvery); ; n++ {
		select {
		case l.places <- struct{}{}:
			return nil
		case l.crowded <- struct{}{}:
			return nil
		case <-l.done:
			return net.ErrClosed
		case <-again: // clients may become idle later
			again = time.After(time.Second)
		}
		if n%int(stallLogInterval/time.Second) == 0 {
			l.stalled("the limit of connections is reached", nil)
		}
		l.makeRoom(&l.roomAt, nil)
	}
}

func (l *Listener) stalled(why string, err error) {
	l.stalls.Inc()
	if now := time.Now(); now.Sub(l.logged) > stallLogInterval {
		l.logged = now
		l.log.Warn("new connections wait", "port", l.port, "open", l.open.Load(), "reason", why, "err", err)
	}
}

// Close also ends a waiting Accept.
func (l *Listener) Close() error {
	l.end.Do(func() { close(l.done) })
	return l.Listener.Close() //nolint:wrapcheck // from the wrapped listener
}

// placed is a connection that holds a place.
type placed struct {
	net.Conn
	in     io.Reader // of Conn, or first what came with the header of the PROXY protocol
	out    io.Writer // of Conn
	client net.Addr  // as that header says. Nil means who Conn is from
	leave  func()    // called once, by Close
	closed atomic.Bool
	counts func(n int) bool // told of what the handshake reads, and reports whether there is room. Nil afterwards
}

// Read reads nothing after Close, and nothing for which there is no room.
func (p *placed) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	if p.closed.Load() || p.counts != nil && !p.counts(n) {
		return 0, net.ErrClosed
	}
	return n, err //nolint:wrapcheck // from the wrapped connection
}

func (p *placed) Write(b []byte) (int, error) {
	return p.out.Write(b) //nolint:wrapcheck // from the wrapped connection
}

func (p *placed) RemoteAddr() net.Addr { return cmp.Or(p.client, p.Conn.RemoteAddr()) }

// rest is how long a client may send after Close, as at net/http (rstAvoidanceDelay), and mostRest how much.
const rest, mostRest = 500 * time.Millisecond, 1 << 20

// Close lets the client send the rest of what it sends: for unread input, or input after the end, the kernel resets the
// connection (RFC 1122 §4.2.2.13), and what the client has not read yet of an answer, such as 431, is lost.
func (p *placed) Close() error {
	if p.closed.Swap(true) {
		return net.ErrClosed
	}
	tcp, ok := p.Conn.(*net.TCPConn)
	if !ok || tcp.CloseWrite() != nil {
		defer p.leave()
		return p.Conn.Close() //nolint:wrapcheck // from the wrapped connection
	}
	// No read deadline: net/http clears it when it ends the read that it keeps beside a handler.
	end := time.AfterFunc(rest, func() { _ = tcp.Close() })
	go func() { // ends with rest
		defer p.leave()
		_, _ = io.CopyN(io.Discard, tcp, mostRest)
		end.Stop()
		_ = tcp.Close()
	}()
	return nil
}

// Wraps lets the engine use the socket directly: the bytes are unchanged, in keeps none, Close gives the place back.
func (p *placed) Wraps() net.Conn { return p.Conn }
