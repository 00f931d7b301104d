//go:build e2e

package hostile

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// visitor is somebody with a connection of each protocol from one address, made again when it has ended.
type visitor struct {
	t       *testing.T
	d       *door
	from    *net.Dialer
	mu      sync.Mutex // guards the rest
	wire    *wire
	conn    net.Conn
	read    *bufio.Reader
	clients *http.Client
}

func (d *door) visit(t *testing.T, from string) *visitor {
	t.Helper()
	v := &visitor{t: t, d: d, from: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}}
	v.clients = client(d.w.as("attacker"), "http/1.1")
	v.clients.Transport.(*http.Transport).DialContext = v.from.DialContext //nolint:forcetypeassert // client has made it
	v.clients.Timeout = 10 * time.Second
	return v
}

func (v *visitor) leave() {
	if v.wire != nil {
		v.wire.close()
	}
	if v.conn != nil {
		_ = v.conn.Close()
	}
	v.clients.CloseIdleConnections()
}

// dressed is the attacker's TLS configuration.
func (v *visitor) dressed() *tls.Config {
	c := v.d.w.as("attacker")
	c.ServerName, c.NextProtos = "localhost", []string{"http/1.1"}
	return c
}

func (v *visitor) frames(h *proportion.Head) int {
	if v.wire == nil {
		w, err := connectBy(v.t.Context(), v.from, v.d.Front, v.dressed(), true)
		if err != nil {
			return 0
		}
		v.wire = w
	}
	select {
	case <-v.wire.answers: // of a stream that has ended since
	default:
	}
	var fields []string
	for _, f := range h.Fields {
		fields = append(fields, f.Name, f.Value)
	}
	_, err := v.wire.ask("GET", h.Path, true, fields...)
	if err := errors.Join(err, v.wire.flush()); err == nil {
		select {
		case status := <-v.wire.answers:
			return status
		case <-v.wire.gone:
		case <-time.After(10 * time.Second):
		}
	}
	v.wire.close()
	v.wire = nil
	return 0
}

func (v *visitor) text(h *proportion.Head) int {
	if v.conn == nil {
		conn, err := tls.DialWithDialer(v.from, "tcp", v.d.Front, v.dressed())
		if err != nil {
			return 0
		}
		v.conn, v.read = conn, bufio.NewReader(conn)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n", h.Path)
	for _, f := range h.Fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.Name, f.Value)
	}
	b.WriteString("\r\n")
	_ = v.conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := v.conn.Write(b.Bytes())
	res, err2 := http.ReadResponse(v.read, nil)
	status := 0
	if err2 == nil {
		status = res.StatusCode
		_, err2 = io.Copy(io.Discard, res.Body)
	}
	if err != nil || err2 != nil || res.Close {
		_ = v.conn.Close()
		v.conn = nil
	}
	return status
}

// asks sends a usual request for a backend's answer, as an upgrade if upgrades is true.
func (v *visitor) asks(path string, upgrades bool) int {
	r := must.Get(http.NewRequestWithContext(v.t.Context(), http.MethodGet, "https://"+v.d.Front+path, nil))(v.t)
	if upgrades {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
	}
	res, err := v.clients.Do(r)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}
