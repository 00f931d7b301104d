package h2

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// lingering is a tunnel whose end takes time: that of an egress selector waits up to 10 s for its
// server (konnectivity's CloseTimeout).
type lingering struct {
	net.Conn
	closing, release chan struct{}
}

func (l lingering) Close() error {
	select {
	case l.closing <- struct{}{}:
	default:
	}
	<-l.release
	return l.Conn.Close()
}

// The end of a tunnel holds up no other connection of its shard.
func TestTunnelThatEndsSlowly(t *testing.T) {
	closing, release := make(chan struct{}, 1), make(chan struct{})
	s := newStand(t, "loop", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, func(c *Config) {
		c.Shards = 1
		c.Dial = func(ctx context.Context, ep *engine.Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, func(), error) {
			return dial(ctx, ep, func(c net.Conn) net.Conn { return wrap(lingering{c, closing, release}) })
		}
	})
	defer close(release)
	check.Same(t, 200, s.do("GET", "/", nil).StatusCode, "status")
	s.backend.CloseClientConnections()
	<-closing
	answered := make(chan int, 1)
	go func() { // ends with the answer
		if res, err := s.client.Get(s.url); err == nil {
			answered <- res.StatusCode
		}
	}()
	select {
	case code := <-answered:
		check.Same(t, 200, code, "status while the tunnel ends")
	case <-time.After(5 * time.Second):
		t.Error("no answer while the tunnel ends")
	}
}
