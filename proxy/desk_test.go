package proxy

import (
	"crypto/x509"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	// maxSteps bounds what of one head is looked at on the loop: each byte of a target and each
	// field some ten times.
	maxSteps = 10 * (quickHead + quickQuery)
)

// FuzzHeadCost holds the rule of docs/architecture.md, "What a stranger can cost", for one head:
// the steps that the code counts, and what it allocates.
func FuzzHeadCost(f *testing.F) {
	_, p := thinker(f, worldConfig{})
	const long = 240_000
	for _, seed := range []struct{ path, query, fields string }{
		{"/%61" + strings.Repeat("/", long), "", ""},
		{"/apis/a/b/c" + strings.Repeat("/..%2f", long/6), "", ""},
		{"/openapi/v3/" + strings.Repeat("/", long), "", ""},
		{"/api/v1/pods", "labelSelector=a" + strings.Repeat("%2Cb", long/4), "authorization: Bearer token-of-carol"},
		{remoteGV + "/widgets", "fieldSelector=metadata.name%3Da&labelSelector=a" + strings.Repeat(",b", quickQuery/2), "authorization: Bearer token-of-carol"},
		{"/api/v1/pods", strings.Repeat("a&", long/2), ""},
		{"/", "", strings.Repeat("a: b\n", 8000)},
		{"/", "", "authorization: Bearer " + strings.Repeat("x", long)},
		{remoteGV + "/widgets", "", "authorization: Bearer token-of-carol\n" + strings.Repeat("impersonate-group: g\n", 8000)},
		{remoteGV + "/widgets", "", "authorization: Bearer token-of-carol\nconnection: " + strings.Repeat("a,", 7000) + "\n" + strings.Repeat("a: b\n", 60)},
	} {
		f.Add("GET", seed.path, seed.query, seed.fields)
	}
	f.Fuzz(func(t *testing.T, method, path, query, text string) {
		h := &Head{Method: method, Path: path, RawQuery: query, Fields: fuzzFields(text), Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
		if len(path)+len(query)+len(text) > 256<<10 {
			return // neither protocol takes it
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var d Decision
		if !h.costly() {
			p.decide(t.Context(), &d, h, nil, false)
		}
		steps := h.steps
		if h.costly() {
			p.decide(t.Context(), &d, h, nil, false)
		}
		runtime.ReadMemStats(&after)
		if steps > maxSteps {
			t.Errorf("%d steps on the loop, at most %d", steps, maxSteps)
		}
		if size := after.TotalAlloc - before.TotalAlloc; size > maxDecided {
			t.Errorf("%d bytes allocated for one decision, at most %d", size, maxDecided)
		}
	})
}

// TestChainsOffTheLoop: what the loop asks verifies no certificate; one turn at the desk verifies
// it for all who wait, over both protocols.
func TestChainsOffTheLoop(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var n atomic.Int64
	a := must.Get(authn.New(authn.Config{VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		n.Add(1)
		return peer[0].Verify(x509.VerifyOptions{Roots: w.client.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}}))(t)
	w.proxy.cfg.Authn = a
	pair := w.client.Issue(pki.Leaf{CommonName: "alice"})
	c := &authn.Conn{Peer: []*x509.Certificate{pair.Certificate}}
	h := &Head{Method: "GET", Path: "/api/v1/pods", Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
	if _, known := w.proxy.decision(t.Context(), h, c, false); known || n.Load() != 0 {
		t.Fatalf("decided without waiting: %v, verified %d times", known, n.Load())
	}
	if d, known := w.proxy.decision(t.Context(), h, c, true); !known || d.Action != ToLocal || d.User.GetName() != "alice" {
		t.Fatalf("%+v", d)
	}
	if _, known := w.proxy.decision(t.Context(), h, c, false); !known || n.Load() != 1 {
		t.Errorf("known %v, verified %d times", known, n.Load())
	}
	n.Store(0)
	client := w.httpClient(t, "h2", pair)
	for _, query := range []string{"", "?labelSelector=a%2C" + strings.Repeat("b", 2*quickQuery), "?x=1", "?labelSelector=a%2C" + strings.Repeat("b", 4*maxSelectors)} {
		if got := w.do(t, client, w.request(t, "GET", "/api/v1/pods"+query, nil)); got.status != http.StatusOK {
			t.Errorf("%.20s: %d %s", query, got.status, got.body)
		}
	}
	if n.Load() != 1 {
		t.Errorf("one connection's certificates were verified %d times", n.Load())
	}
}

// TestDeskIsShared: one connection that fills the desk is refused, and others wait for their turn.
func TestDeskIsShared(t *testing.T) {
	p := &Proxy{desk: newDesk()}
	long := &Head{Remote: "192.0.2.1:1", Fields: []hpack.HeaderField{{Name: "x", Value: strings.Repeat("x", quickHead)}}}
	if !long.costly() {
		t.Error("a long head is quick")
	}
	ctx := t.Context()
	leave := must.Get(p.turn(ctx, long))(t)
	done := make(chan error, maxAtDesk)
	for range maxAtDesk {
		go func() {
			leave, err := p.turn(ctx, long)
			if err == nil {
				leave()
			}
			done <- err
		}()
	}
	refused := 0
	for range maxAtDesk - maxAtDesk/16 { // those that do not wait
		if err := <-done; err != nil {
			refused++
		}
	}
	leave()
	if refused == 0 {
		t.Error("one connection may wait as often as it likes")
	}
	other := &Head{Remote: "192.0.2.2:1"}
	leave = must.Get(p.turn(ctx, other))(t)
	leave()
}
