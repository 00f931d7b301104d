package h2

import (
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The driver relies on this, which crypto/tls does not promise: a Temporary error leaves the
// connection usable and is returned unchanged, and a partly read record is kept until the rest has
// come. Here each byte is followed by such an error.
func TestTLSKeepsPartialRecords(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			ca := pki.NewCA("serving")
			near, far := net.Pipe()
			defer near.Close()
			defer far.Close()
			raw := wrapConn(near).(*rawConn)
			server := tls.Server(raw, &tls.Config{MinVersion: version, MaxVersion: version, SessionTicketsDisabled: true,
				Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"x"}}).TLS()}})
			sent := &heldConn{Conn: far}
			client := tls.Client(sent, &tls.Config{RootCAs: ca.Pool(), ServerName: "x", MinVersion: version, MaxVersion: version})
			done := make(chan error, 1)
			go func() { done <- client.HandshakeContext(t.Context()) }()
			must.Do(t, server.HandshakeContext(t.Context()))
			must.Do(t, <-done)
			raw.takeOver(&output{})
			sent.hold = true
			const first, second = "the first record", "and the second"
			for _, p := range []string{first, second} {
				must.Get(io.WriteString(client, p))(t)
			}
			var got []byte
			buf := make([]byte, 100)
			for i := range sent.held {
				raw.rest = sent.held[i : i+1]
				n, err := server.Read(buf)
				if err != nil && err != (errNoInput{}) { //nolint:errorlint // this is what is tested
					t.Fatalf("after %d of %d bytes: %v", i+1, len(sent.held), err)
				}
				got = append(got, buf[:n]...)
			}
			if string(got) != first+second {
				t.Errorf("got %q", got)
			}
			if _, err := io.WriteString(server, "and back"); err != nil || len(raw.out) == 0 {
				t.Errorf("writing afterwards: %d bytes, %v", len(raw.out), err)
			}
		})
	}
}

// heldConn keeps what is written after hold is set.
type heldConn struct {
	net.Conn
	hold bool
	held []byte
}

func (c *heldConn) Write(p []byte) (int, error) {
	if !c.hold {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	return len(p), nil
}
