package backend

import (
	"crypto/tls"
	"errors"
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A server at whose chain verification panics (CVE-2025-58188 was such in crypto/x509) is one that
// cannot be reached: dials have goroutines of their own, where a panic would end the process.
func TestServersChainThatPanics(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		s := newServer(t, proto, nil)
		f := newFixture(t, func(c *Config) {
			trusting := c.TLS
			c.TLS = func(_ string, b *registry.Backend) (*tls.Config, error) {
				tc, err := trusting("", b)
				tc.VerifyConnection = func(tls.ConnectionState) error { panic("verifying") }
				return tc, err
			}
		})
		e := f.set(healthy(s.address))
		if _, _, err := f.do(e, http.MethodGet, ""); !errors.Is(err, ErrUnreachable) {
			t.Errorf("a request: %v, want ErrUnreachable", err)
		}
		if _, err := f.Upstream(e).DialUpgrade(t.Context()); !errors.Is(err, ErrUnreachable) {
			t.Errorf("an upgrade: %v, want ErrUnreachable", err)
		}
	})
}
