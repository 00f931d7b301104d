//go:build e2e

package rotation

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func removedClientCA(t *testing.T, s *stage) {
	ca := pki.NewCA("passing-client-ca")
	removed(t, s, s.clients, ca, masters(ca))
}

func removedProxyCA(t *testing.T, s *stage) {
	ca := pki.NewCA("passing-requestheader-ca")
	removed(t, s, s.proxies, ca, gateway(ca))
}

// removed removes a CA from a bundle, and checks connections that were made before.
func removed(t *testing.T, s *stage, b *bundle, ca *pki.CA, id identity) {
	b.add(t, ca)
	s.accepted(t, id)
	open := s.opened(t, id)
	b.remove(t, ca)
	s.refused(t, id)
	// Refused on new connections: then no request may succeed on an open one.
	s.ended(t, open)
}

func expiredLeaf(t *testing.T, s *stage) {
	end := soon()
	pair := s.clients.lasting.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"system:masters"}, NotAfter: end})
	open := s.opened(t, user(pair))
	suite.Pause(t, time.Until(end))
	s.ended(t, open)
}

func expiredChain(t *testing.T, s *stage) {
	end := soon()
	between := s.clients.lasting.IntermediateUntil("intermediate", end)
	open := s.opened(t, masters(between))
	suite.Pause(t, time.Until(end))
	s.ended(t, open)
}

// soon is a time in whole seconds, as in certificates, with time to do something before.
func soon() time.Time { return time.Now().Add(10 * time.Second).Truncate(time.Second) }

// opened makes one connection, and sends requests to each side on it.
func (s *stage) opened(t *testing.T, id identity) *client {
	t.Helper()
	c := s.client(id, true)
	t.Cleanup(c.close)
	for range 3 {
		for _, tg := range s.targets[:2] {
			if _, err := c.get(t.Context(), tg.get); err != nil {
				t.Fatalf("%s: %v", tg.name, err)
			}
		}
	}
	return c
}

// ended expects the next request to each side on the open connection to be refused, and the
// connection to stay.
func (s *stage) ended(t *testing.T, open *client) {
	t.Helper()
	for _, tg := range s.targets[:2] {
		if status, err := open.get(t.Context(), tg.get); status != 401 {
			t.Errorf("%s: %d (%v) on the open connection, want 401", tg.name, status, err)
		}
	}
	if n := open.dials.Load(); n != 1 {
		t.Errorf("%d connections were made, want one", n)
	}
}
