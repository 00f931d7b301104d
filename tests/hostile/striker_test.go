//go:build e2e

package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/tlsrecords"
)

// striker is one connection of an attack. One of h1, h2 and records is set.
type striker struct {
	h1      *tls.Conn
	h2      *wire
	records *tlsrecords.Conn
	n       int // strikes so far
}

// get sends a request over either protocol.
func (s *striker) get(path string) error {
	if s.h2 != nil {
		_, err := s.h2.ask("GET", path, true)
		return errors.Join(err, s.h2.flush())
	}
	return s.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

// post begins an upload without sending any of it.
func (s *striker) post(path string) error {
	if s.h2 != nil {
		_, err := s.h2.ask("POST", path, false, "content-length", "100", "content-type", "application/json")
		return err
	}
	return s.send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
}

func (s *striker) send(text string) error {
	if err := s.h1.SetWriteDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, err := io.WriteString(s.h1, text)
	return err
}

func (s *striker) close() {
	switch {
	case s.h2 != nil:
		s.h2.close()
	case s.records != nil:
		_ = s.records.NetConn().Close()
	default:
		_ = s.h1.NetConn().Close()
	}
}

func (s *siege) connect(ctx context.Context) (*striker, error) {
	as := s.h.tls(nil)
	if s.attack.user != "" {
		as = s.h.tls(s.h.PKI.Client.CA.Issue(pki.Leaf{CommonName: s.attack.user}))
	}
	if chain := s.attack.chain; chain != nil {
		as.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return chain, nil }
	}
	address := host(s.h.front.Endpoint)
	if s.attack.records {
		return speakRecords(ctx, address, as)
	}
	if s.attack.proto == "h2" {
		w, err := connect(ctx, address, as, true)
		return &striker{h2: w}, err
	}
	as.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: as}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := conn.(*tls.Conn)                                          //nolint:forcetypeassert // a tls.Dialer makes no other
	go func() { _, _ = io.Copy(io.Discard, bufio.NewReader(c)) }() // ends with the connection
	return &striker{h1: c}, nil
}

// speakRecords opens an HTTP/2 connection whose TLS records the attack writes.
func speakRecords(ctx context.Context, address string, as *tls.Config) (*striker, error) {
	as.NextProtos = []string{"h2"}
	c, err := tlsrecords.Dial(ctx, address, as)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, c.NetConn()) }()                          // ends with the connection
	_, err = c.Write(append([]byte(http2.ClientPreface), 0, 0, 0, 4, 0, 0, 0, 0, 0)) // and empty SETTINGS
	return &striker{records: c}, err
}

// strikes runs one connection of an attack until ctx ends, and reopens it when the server ends it.
// struck is called when an attack with one strike has struck.
func (s *siege) strikes(ctx context.Context, i int, struck func()) {
	var on *striker
	defer struck()
	defer func() {
		if on != nil {
			on.close()
		}
	}()
	every := s.attack.every
	// Connections alternate, and the first strike is within the window.
	next := time.After(swing + every*time.Duration(i)/time.Duration(s.connections))
	if every == 0 {
		next = time.After(0)
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		if on != nil && s.attack.fresh {
			on.close()
			on = nil
		}
		if on == nil {
			var err error
			if on, err = s.connect(ctx); err != nil {
				on, next = nil, time.After(again)
				continue
			}
		}
		on.n = n
		if err := s.attack.strike(ctx, on); err != nil {
			on.close()
			on, next = nil, time.After(again)
			continue
		}
		if every == 0 {
			struck()
			<-ctx.Done()
			return
		}
		next = time.After(every)
	}
}
