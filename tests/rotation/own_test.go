//go:build e2e

package rotation

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// takenWithin is the limit until a change is in force: Fairlead waits for 100 ms without changes, a
// second at most, and 32 such cases run at once. The real time is logged.
const takenWithin = 5 * time.Second

func rotateServing(t *testing.T, s *stage) {
	m := s.mark()
	for range 3 {
		want := s.newServing(t)
		took := suite.Eventually(t, takenWithin, "new connections are shown the new certificate", func() (bool, string) {
			got, err := s.served(t.Context())
			if err != nil {
				t.Fatalf("a handshake failed during the rotation: %v", err)
			}
			return got.Equal(want), "they are shown the old one"
		})
		t.Logf("in force after %s", took.Round(time.Millisecond))
		suite.Pause(t, 500*time.Millisecond)
	}
	s.judge(t, m, "")
	if got := s.metric(t, "fairlead_certificate_reloads_total", `use="serving"`, `outcome="success"`); len(got) != 1 {
		t.Errorf("metric: %q", got)
	}
}

func rotateClientCA(t *testing.T, s *stage) { s.replaceFirst(t, s.clients, 0, masters) }

func rotateRequestHeaderCA(t *testing.T, s *stage) { s.replaceFirst(t, s.proxies, 1, gateway) }

// replaceFirst moves a caller of the load to a new CA of the same name: only the keys differ.
func (s *stage) replaceFirst(t *testing.T, b *bundle, caller int, of func(*pki.CA) identity) {
	t.Helper()
	m := s.mark()
	next := pki.NewCA(b.first.Certificate.Subject.CommonName)
	b.add(t, next)
	s.accepted(t, of(next))
	s.move(caller, of(next))
	suite.Pause(t, time.Second) // requests on the old connections end
	b.remove(t, b.first)
	s.refused(t, of(b.first))
	suite.Pause(t, time.Second)
	s.judge(t, m, "")
}

func (s *stage) accepted(t *testing.T, id identity) {
	t.Helper()
	s.answers(t, id, 200, "a certificate of the new CA is accepted")
}

func (s *stage) refused(t *testing.T, id identity) {
	t.Helper()
	s.answers(t, id, 401, "a certificate of the old CA is refused")
}

func (s *stage) answers(t *testing.T, id identity, want int, what string) {
	t.Helper()
	for _, tg := range s.targets[:2] {
		suite.Eventually(t, takenWithin, what+" for "+tg.name, func() (bool, string) {
			c := s.client(id, true)
			defer c.close()
			status, err := c.get(t.Context(), tg.get)
			if status != 200 && status != 401 {
				t.Fatalf("%s: %v", tg.name, err)
			}
			return status == want, fmt.Sprint(status)
		})
	}
}

// rotateProxyPair moves to a certificate of another CA. As in the documented procedure, all servers
// trust both CAs by then.
func rotateProxyPair(t *testing.T, s *stage) {
	m := s.mark()
	for _, ca := range []*pki.CA{s.w.frontCAs[1], s.w.frontCAs[1], s.w.frontCAs[0]} {
		pair := ca.Issue(pki.Leaf{CommonName: "fairlead"})
		serial := pair.Certificate.SerialNumber.Text(16)
		writePair(t, s.proxyPair, pair)
		took := suite.Eventually(t, takenWithin, "backends are shown the new certificate", func() (bool, string) {
			last := s.steady.handled(time.Now().Add(-time.Second))
			return len(last) > 0 && last[len(last)-1].PeerSerial == serial, "they are shown the old one"
		})
		t.Logf("in force after %s", took.Round(time.Millisecond))
		since := time.Now()
		suite.Pause(t, time.Second)
		for _, r := range []*remote{s.steady, s.inline, s.overlap, s.configmap} {
			old := 0
			for _, q := range r.handled(since.Add(500 * time.Millisecond)) {
				if q.PeerSerial != serial {
					old++
				}
			}
			if old > 0 {
				t.Errorf("%d requests reached %s with the old certificate, half a second after the first with the new one", old, r.name)
			}
		}
	}
	s.judge(t, m, "")
}

// token is the bearer token of a user in system:masters at kube-apiserver.
func token() identity {
	return identity{header: map[string][]string{"Authorization": {"Bearer admin-token"}}}
}
