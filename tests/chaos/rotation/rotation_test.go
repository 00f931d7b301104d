//go:build e2e

package rotation

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// takenWithin is the limit until a change is in force: Fairlead waits for 100 ms without changes, a second at most.
const takenWithin = 5 * time.Second

// stage is a Fairlead under load, with the load's backends.
type stage struct {
	*front
	*load

	steady, inline, overlap *remote
}

func TestRotation(t *testing.T) {
	w := newWorld(t)
	s := &stage{
		steady:  startRemote(t, w, "steady", nil),
		inline:  startRemote(t, w, "inline", nil),
		overlap: startRemote(t, w, "overlap", map[string]string{"fairlead.dev/ca-rotation-overlap": "12s"}),
		front:   startFront(t, w),
	}
	local := "/api/v1/namespaces/default/configmaps"
	targets := []target{{name: "local", get: local + "/" + beat, watch: local + "?watch=1&timeoutSeconds=3600&fieldSelector=metadata.name%3D" + beat}}
	for _, r := range s.remotes() {
		targets = append(targets, r.target())
		suite.Eventually(t, 30*time.Second, r.name+" is available", func() (bool, string) {
			err := ask.Serves(t.Context(), s.admin, s.Endpoint.URL+r.target().get)
			return err == nil, fmt.Sprint(err)
		})
	}
	emitEvents(t, w, s.remotes())
	s.load = startLoad(t, s.front, targets)
	suite.Cases[*stage]{
		{Name: "serving pair", Run: rotateServing},
		{Name: "client CA", Run: func(t *testing.T, s *stage) { s.replaceFirst(t, s.clients, 0, masters) }},
		{Name: "request-header CA", Run: func(t *testing.T, s *stage) { s.replaceFirst(t, s.proxies, 1, gateway) }},
		{Name: "proxy client pair", Run: rotateProxyPair},
		{Name: "caBundle, old then both then new", Run: rotateByTheBook},
		{Name: "caBundle first, backend later", Run: rotateBundleFirst},
	}.Run(t, s)
}

func (s *stage) remotes() []*remote { return []*remote{s.steady, s.inline, s.overlap} }

func rotateServing(t *testing.T, s *stage) {
	s.begin(t)
	for range 3 {
		want := s.newServing(t)
		suite.Eventually(t, takenWithin, "new connections are shown the new certificate", func() (bool, string) {
			return s.served(t).Equal(want), "they are shown the old one"
		})
		suite.Pause(t, 500*time.Millisecond)
	}
	s.judge(t, "")
	if n := s.metric(t, "fairlead_certificate_reloads_total", `use="serving"`, `outcome="success"`); len(n) != 1 {
		t.Errorf("metric: %v", n)
	}
}

// replaceFirst moves a caller of the load to a new CA of the same name: only the keys differ. The
// old CA's certificates are refused then, on connections that were made before, too.
func (s *stage) replaceFirst(t *testing.T, b *bundle, caller int, of func(*pki.CA) identity) {
	t.Helper()
	s.begin(t)
	next := pki.NewCA(b.first.Certificate.Subject.CommonName)
	b.write(t, b.first, b.lasting, next)
	s.answers(t, of(next), 200, "a certificate of the new CA is accepted")
	s.callers[caller].move(of(next))
	suite.Pause(t, time.Second) // requests on the old connections end
	old := of(b.first)
	open := &http.Client{Transport: s.transport(old, true)}
	for _, tg := range s.targets[:2] {
		s.onOne(t, open, old, tg, 200)
	}
	b.write(t, b.lasting, next)
	s.answers(t, of(b.first), 401, "a certificate of the old CA is refused")
	// Refused on new connections: then no request may succeed on an open one.
	for _, tg := range s.targets[:2] {
		s.onOne(t, open, old, tg, 401)
	}
	suite.Pause(t, time.Second)
	s.judge(t, "")
}

// answers waits until new connections of an identity are answered alike for both sides.
func (s *stage) answers(t *testing.T, id identity, want int, what string) {
	t.Helper()
	for _, tg := range s.targets[:2] {
		suite.Eventually(t, takenWithin, what+" for "+tg.name, func() (bool, string) {
			c := &http.Client{Transport: s.transport(id, true)}
			defer c.CloseIdleConnections()
			reply, err := ask.Do(t.Context(), c, http.MethodGet, s.Endpoint.URL+tg.get, id.header, "")
			if err != nil || reply.Code != 200 && reply.Code != 401 {
				t.Fatalf("%s: %d %v", tg.name, reply.Code, err)
			}
			return reply.Code == want, fmt.Sprint(reply.Code)
		})
	}
}

// rotateProxyPair moves to a certificate of another CA. As in the documented procedure, all servers
// trust both CAs by then.
func rotateProxyPair(t *testing.T, s *stage) {
	s.begin(t)
	for _, ca := range []*pki.CA{s.w.frontCAs[1], s.w.frontCAs[1], s.w.frontCAs[0]} {
		pair := ca.Issue(pki.Leaf{CommonName: "fairlead"})
		serial := pair.Certificate.SerialNumber.Text(16)
		writePair(t, s.proxyPair, pair)
		suite.Eventually(t, takenWithin, "backends are shown the new certificate", func() (bool, string) {
			last := s.steady.handled(time.Now().Add(-time.Second))
			return len(last) > 0 && last[len(last)-1].PeerSerial == serial, "they are shown the old one"
		})
		since := time.Now().Add(500 * time.Millisecond)
		suite.Pause(t, time.Second)
		for _, r := range s.remotes() {
			for _, q := range r.handled(since) {
				if q.PeerSerial != serial {
					t.Errorf("%s reached %s with the old certificate, half a second after the first with the new one", q.Target, r.name)
				}
			}
		}
	}
	s.judge(t, "")
}

// loaded waits until Fairlead has put a remote's next bundle in force.
func (s *stage) loaded(t *testing.T, r *remote, change func()) {
	t.Helper()
	count := func() string {
		return fmt.Sprint(s.metric(t, "fairlead_certificate_backend_bundle_reloads_total", `"v1.`+r.group+`"`, `outcome="success"`))
	}
	before := count()
	change()
	suite.Eventually(t, takenWithin, "the bundle is in force", func() (bool, string) { now := count(); return now != before, now })
}

// rotateByTheBook rotates a CA so that nothing that works is ever untrusted.
func rotateByTheBook(t *testing.T, s *stage) {
	r := s.inline
	s.begin(t)
	s.loaded(t, r, func() { r.trust(t, r.old, r.new) })
	suite.Pause(t, time.Second)
	leaves := func() int {
		return len(s.metric(t, "fairlead_certificate_backend_expiration_timestamp_seconds", `"v1.`+r.group+`"`, `kind="leaf"`))
	}
	before := leaves()
	r.serve(r.new)
	suite.Eventually(t, 20*time.Second, "a probe has seen the new certificate", func() (bool, string) { n := leaves(); return n > before, fmt.Sprint(n) })
	s.loaded(t, r, func() { r.trust(t, r.new) })
	suite.Pause(t, 6*time.Second) // the limit of watches over connections of the old CA is 5 s
	s.judge(t, r.group)
}

// rotateBundleFirst replaces the bundle while the backend still has its old certificate: the case
// for a replaced CA's overlap.
func rotateBundleFirst(t *testing.T, s *stage) {
	r := s.overlap
	s.begin(t)
	s.loaded(t, r, func() { r.trust(t, r.new) })
	suite.Pause(t, 8*time.Second) // of 12 s of overlap
	if got := s.metric(t, "fairlead_certificate_backend_overlap", `"v1.`+r.group+`"} 1`); len(got) != 1 {
		t.Errorf("the metric lacks the current overlap: %v", got)
	}
	r.serve(r.new)
	suite.Pause(t, 10*time.Second) // past the end of the overlap, and of the watches over connections of the old CA
	s.judge(t, r.group)
	if got := s.metric(t, "fairlead_certificate_backend_overlap", `"v1.`+r.group+`"} 0`); len(got) != 1 {
		t.Errorf("the metric still has the ended overlap: %v", got)
	}
}
