package trust

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// ca returns the CA of this name. A number after # distinguishes CAs of one name.
func (s *stage) ca(name string) *pki.CA {
	if s.cas[name] == nil {
		common, _, _ := strings.Cut(name, "#")
		s.cas[name] = pki.NewCA(common)
	}
	return s.cas[name]
}

// bundle is a bundle of CAs, or one with a fault.
func (s *stage) bundle(names string) (text []byte) {
	for name := range strings.SplitSeq(names, "|") {
		switch name {
		case "":
		case "garbage":
			text = append(text, name...)
		case "cut":
			text = append(text, "-----BEGIN CERTIFICATE-----"...)
		case "nonsense":
			text = append(text, "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"...)
		default:
			text = append(text, s.ca(name).PEM()...)
		}
	}
	return text
}

// pair issues a certificate of a CA, for the backend's name unless the options differ.
func (s *stage) pair(text string) *pki.Pair {
	words := strings.Split(text, ",")
	ca, leaf, now := s.ca(words[0]), pki.Leaf{CommonName: "metrics", Names: []string{serverName}}, time.Now()
	for _, option := range words[1:] {
		switch key, value, _ := strings.Cut(option, "="); key {
		case "names":
			value = strings.ReplaceAll(value, ";", ",") // in one name
			leaf.Names = slices.DeleteFunc(strings.Split(value, "|"), func(n string) bool { return n == "" })
		case "until":
			leaf.NotAfter = now.Add(must.Get(time.ParseDuration(value))(s.t))
		case "from":
			leaf.NotBefore = now.Add(must.Get(time.ParseDuration(value))(s.t))
		case "sha1":
			leaf.SHA1 = true
		case "client":
			leaf.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		case "through": // an intermediate CA that is valid so long
			ca = ca.IntermediateUntil("middle", now.Add(must.Get(time.ParseDuration(value))(s.t)))
		default:
			s.t.Fatalf("unknown option %s", option)
		}
	}
	return ca.Issue(leaf)
}

// connection is guarded.
type connection struct {
	lost    <-chan struct{}
	release func()
}

func (c connection) isLost() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// config returns what a target is dialled with: an APIService, all users of a Backend (*), or the
// local apiserver by an address.
func (s *stage) config(target string) (*tls.Config, error) {
	if address, local := strings.CutPrefix(target, "local@"); local {
		cfg, err := s.LocalTLS(false)
		cfg.ServerName = address
		return cfg, err
	}
	name, all := strings.CutPrefix(target, "*")
	if all {
		return s.TLS("", s.backends[name])
	}
	return s.TLS(name, s.backends[name])
}

// dial performs a real handshake in memory with a server that has the pair.
func (s *stage) dial(target string, pair *pki.Pair) error {
	cfg, err := s.config(target)
	if err != nil {
		return err
	}
	return shake(s.t, cfg, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}})
}

// guard guards a connection on which the pair was presented.
func (s *stage) guard(target string, pair *pki.Pair) (c connection) {
	name, all := strings.CutPrefix(target, "*")
	switch {
	case target == "local":
		c.lost, c.release = s.LocalGuard(pair.Chain())
	case all:
		c.lost, c.release = s.Guard("", s.backends[name], pair.Chain())
	default:
		c.lost, c.release = s.Guard(name, s.backends[name], pair.Chain())
	}
	s.t.Cleanup(c.release)
	return c
}

// buffered is an end of a net.Pipe whose writes do not block: when a client refuses a certificate,
// both sides write at once.
type buffered struct {
	net.Conn
	writes chan []byte
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, writes: make(chan []byte, 64)}
	go func() {
		for p := range b.writes {
			c.Write(p)
		}
		c.Close()
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.writes <- bytes.Clone(p)
	return len(p), nil
}

// Close closes the connection when everything has been written or the other side has closed it.
func (b *buffered) Close() error {
	close(b.writes)
	return nil
}

// shake runs one handshake in memory and returns the client's result.
func shake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := newBuffered(far)
		defer b.Close()
		s := tls.Server(b, server)
		if s.Handshake() == nil {
			io.Copy(io.Discard, s) // until the client closes
		}
	}()
	conn := newBuffered(near)
	err := tls.Client(conn, client).HandshakeContext(t.Context())
	conn.Close()
	<-done
	return err
}
