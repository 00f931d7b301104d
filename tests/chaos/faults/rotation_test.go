//go:build e2e

package faults

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// takenWithin is the limit until a change is in force: Fairlead waits for 100 ms without changes, a second at most.
const takenWithin = 5 * time.Second

const beat = "beat" // the ConfigMap at the local apiserver that the load reads and watches

// stage is a Fairlead under load, with the load's backends.
type stage struct {
	*door
	*load

	steady, inline, overlap *remote
}

// testRotation replaces every certificate and CA that Fairlead holds or trusts.
func testRotation(t *testing.T, d *door) {
	must.Get(d.w.core.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beat}}, metav1.CreateOptions{}))(t)
	s := &stage{
		door: d, steady: d.remote(t, 1, nil), inline: d.remote(t, 1, nil),
		overlap: d.remote(t, 1, map[string]string{"fairlead.dev/ca-rotation-overlap": "12s"}),
	}
	local := "/api/v1/namespaces/default/configmaps"
	targets := []target{{name: "local", get: local + "/" + beat, watch: local + "?watch=1&timeoutSeconds=3600&fieldSelector=metadata.name%3D" + beat}}
	for _, r := range s.remotes() {
		targets = append(targets, target{name: r.group, get: r.widgets + "/widget-000", watch: r.widgets + "?watch=1&resourceVersion=1"})
	}
	repeat(t, 250*time.Millisecond, s.emit)
	s.load = startLoad(t, d, targets)
	suite.Cases[*stage]{
		{Name: "serving pair", Run: rotateServing},
		{Name: "client CA", Run: func(t *testing.T, s *stage) { s.replaceFirst(t, d.w.clients, 0, masters) }},
		{Name: "request-header CA", Run: func(t *testing.T, s *stage) { s.replaceFirst(t, d.w.proxies, 1, gateway) }},
		{Name: "proxy client pair", Run: rotateProxyPair},
		{Name: "caBundle, old then both then new", Run: rotateByTheBook},
		{Name: "caBundle first, backend later", Run: rotateBundleFirst},
	}.Run(t, s)
}

func (s *stage) remotes() []*remote { return []*remote{s.steady, s.inline, s.overlap} }

func (s *stage) emit(ctx context.Context) {
	for _, r := range s.remotes() {
		r.servers[0].Emit()
	}
	patch := fmt.Appendf(nil, `{"data":{"beat":%q}}`, time.Now())
	_, _ = s.w.core.CoreV1().ConfigMaps("default").Patch(ctx, beat, types.MergePatchType, patch, metav1.PatchOptions{}) // watches without events fail
}

// handled returns Fairlead's requests for widgets since a moment. Probes request documents.
func (r *remote) handled(since time.Time) []extension.Request {
	return slices.DeleteFunc(r.servers[0].Requests(), func(q extension.Request) bool {
		return !q.Time.After(since) || !strings.Contains(q.Target, "/widgets")
	})
}

// trust replaces caBundle.
func (r *remote) trust(t *testing.T, cas ...*pki.CA) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"caBundle":%q}}`, base64.StdEncoding.EncodeToString(pki.Bundle(cas...)))
	must.Get(r.w.services.Patch(t.Context(), "v1."+r.group, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// onOne sends a request on the client's open connection, if it has one.
func (s *stage) onOne(t *testing.T, c *http.Client, id identity, tg target, want int) {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		check.Same(t, true, i.Reused || want == http.StatusOK, "the open connection was closed")
	}})
	reply, err := ask.Do(ctx, c, http.MethodGet, s.Endpoint.URL+tg.get, id.header, "")
	check.Same(t, true, err == nil && reply.Code == want, "%s: %d (%v) on the open connection, want %d", tg.name, reply.Code, err, want)
}

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
	n := s.series("fairlead_certificate_reloads_total", `use="serving"`, `outcome="success"`)
	check.Same(t, 1, len(n), "series of the metric: %v", n)
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
	open := &http.Client{Transport: s.w.transport(old, true)}
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
			c := &http.Client{Transport: s.w.transport(id, true)}
			defer c.CloseIdleConnections()
			reply, err := ask.Do(t.Context(), c, http.MethodGet, s.Endpoint.URL+tg.get, id.header, "")
			must.Be(t, err == nil && (reply.Code == 200 || reply.Code == 401), "%s: %d %v", tg.name, reply.Code, err)
			return reply.Code == want, fmt.Sprint(reply.Code)
		})
	}
}

// rotateProxyPair moves to a certificate of another CA. As in the documented procedure, all servers
// trust both CAs by then.
func rotateProxyPair(t *testing.T, s *stage) {
	s.begin(t)
	for _, ca := range []*pki.CA{s.w.fronts[1], s.w.fronts[1], s.w.fronts[0]} {
		pair := ca.Issue(pki.Leaf{CommonName: "front-proxy-client"})
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
				check.Same(t, serial, q.PeerSerial, "the certificate of %s, half a second after the first with the new one", q.Target)
			}
		}
	}
	s.judge(t, "")
}

// loaded waits until Fairlead has put a remote's next bundle in force.
func (s *stage) loaded(t *testing.T, r *remote, change func()) {
	t.Helper()
	count := func() string {
		return fmt.Sprint(s.series("fairlead_certificate_backend_bundle_reloads_total", `"v1.`+r.group+`"`, `outcome="success"`))
	}
	before := count()
	change()
	suite.Eventually(t, takenWithin, "the bundle is in force", func() (bool, string) { now := count(); return now != before, now })
}

// rotateByTheBook rotates a CA so that nothing that works is ever untrusted.
func rotateByTheBook(t *testing.T, s *stage) {
	r, fresh := s.inline, pki.NewCA("new-ca")
	s.begin(t)
	s.loaded(t, r, func() { r.trust(t, r.ca, fresh) })
	suite.Pause(t, time.Second)
	leaves := func() int {
		return len(s.series("fairlead_certificate_backend_expiration_timestamp_seconds", `"v1.`+r.group+`"`, `kind="leaf"`))
	}
	before := leaves()
	r.serve(fresh)
	suite.Eventually(t, 20*time.Second, "a probe has seen the new certificate", func() (bool, string) { n := leaves(); return n > before, fmt.Sprint(n) })
	s.loaded(t, r, func() { r.trust(t, fresh) })
	suite.Pause(t, 6*time.Second) // the limit of watches over connections of the old CA is 5 s
	s.judge(t, r.group)
}

// rotateBundleFirst replaces the bundle while the backend still has its old certificate: the case
// for a replaced CA's overlap.
func rotateBundleFirst(t *testing.T, s *stage) {
	r, fresh := s.overlap, pki.NewCA("new-ca")
	overlaps := func(want float64) {
		t.Helper()
		got := slices.Collect(maps.Values(s.series("fairlead_certificate_backend_overlap", `"v1.`+r.group+`"`)))
		check.Same(t, []float64{want}, got, "the metric of the overlap")
	}
	s.begin(t)
	s.loaded(t, r, func() { r.trust(t, fresh) })
	suite.Pause(t, 8*time.Second) // of 12 s of overlap
	overlaps(1)
	r.serve(fresh)
	suite.Pause(t, 10*time.Second) // past the end of the overlap, and of the watches over connections of the old CA
	s.judge(t, r.group)
	overlaps(0)
}
