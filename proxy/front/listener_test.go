package front

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// boundedPort is a port that takes most connections.
func boundedPort(t *testing.T, most int) (l *Listener, client *tls.Config) {
	t.Helper()
	l = must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: most, Metrics: prometheus.NewRegistry()}))(t)
	answer := &h2.Answer{Status: http.StatusNoContent, Fields: []hpack.HeaderField{{Name: ":status", Value: "204"}}}
	_, client = serve(t, l, h2.Plan{Answer: answer}, http.NotFoundHandler())
	return l, client
}

// until waits for something that another goroutine brings about.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// A place lives as long as its connection, whoever reads from the socket.
func TestMaxConnections(t *testing.T) {
	const most = 4
	for _, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			c, client := boundedPort(t, most)
			client.NextProtos = []string{protocol}
			open := func() (*tls.Conn, error) {
				conn, err := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", c.Addr().String())
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn.(*tls.Conn), served(conn.(*tls.Conn), protocol)
			}
			var conns []*tls.Conn
			for range most {
				conn := must.Get(open())(t)
				conns = append(conns, conn)
			}
			if n := c.open.Load(); n != most {
				t.Errorf("fairlead_connections is %d with %d connections open", n, most)
			}
			more := make(chan error, 1)
			go func() { _, err := open(); more <- err }()
			until(t, "a full port says so", func() bool { return testutil.ToFloat64(c.stalls) > 0 || len(more) > 0 })
			if len(more) > 0 {
				t.Fatalf("connection %d is served where %d are allowed (%v)", most+1, most, <-more)
			}
			_ = conns[0].Close()
			if err := <-more; err != nil {
				t.Fatalf("the one that waited: %v", err)
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			until(t, "one connection is counted when one is open", func() bool { return c.open.Load() == 1 })
		})
	}
}

// exhausted has no file descriptor left, some times.
type exhausted struct {
	net.Listener
	times int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.times--; e.times >= 0 {
		return nil, syscall.EMFILE
	}
	return e.Listener.Accept()
}

// No place stays taken for a connection that could not be accepted.
func TestFailedAcceptKeepsNoPlace(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 1}))(t)
	defer time.AfterFunc(10*time.Second, func() { _ = l.Close() }).Stop() // which ends a wait for a place
	l.Listener = &exhausted{l.Listener, 2}
	for range 2 {
		if _, err := l.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Fatal(err)
		}
	}
	client := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	_ = conn.Close()
	_ = l.Close()
}

// served asks once, so that the connection is where it stays.
func served(c *tls.Conn, protocol string) error {
	if protocol != "h2" {
		r, err := http.NewRequest(http.MethodGet, "https://x/", nil)
		if err != nil {
			return err
		}
		if err := r.Write(c); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	}
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return err
	}
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		return err
	}
	if err := fr.WritePing(false, [8]byte{}); err != nil {
		return err
	}
	for {
		f, err := fr.ReadFrame()
		if p, ok := f.(*http2.PingFrame); err != nil || ok && p.IsAck() {
			return err
		}
	}
}
