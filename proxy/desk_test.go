package proxy

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// FuzzHeadCost checks the rule of docs/bounds.md, "What a stranger can cost", for the allocations of one head.
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
		h := of(method, path, query, fuzzFields(text))
		if len(path)+len(query)+len(text) > 256<<10 {
			return // neither protocol accepts it
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = p.decide(&Decision{}, h, nil, time.Now())
		runtime.ReadMemStats(&after)
		check.Within(t, 0, maxDecided, after.TotalAlloc-before.TotalAlloc, "bytes allocated for one decision")
	})
}

// The loop verifies no certificate. The desk verifies a chain once for all requests of its
// connection that wait for it, over both protocols.
func TestChainsOffTheLoop(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var n atomic.Int64
	a := must.Get(authn.New(authn.Config{VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		n.Add(1)
		return verifier(w.client)(peer)
	}}))(t)
	w.proxy.cfg.Authn = a
	pair := w.client.Issue(pki.Leaf{CommonName: "alice"})
	c := &authn.Conn{Peer: []*x509.Certificate{pair.Certificate}}
	h := of("GET", "/api/v1/pods", "", nil)
	_, known := w.proxy.decision(t.Context(), h, c, false)
	check.Same(t, "false 0", fmt.Sprint(known, " ", n.Load()), "decided without waiting, and times that it was verified")
	d, known := w.proxy.decision(t.Context(), h, c, true)
	check.Same(t, true, known && d.Action == ToLocal && d.User.GetName() == "alice", "known %v: %+v", known, d)
	_, known = w.proxy.decision(t.Context(), h, c, false)
	check.Same(t, "true 1", fmt.Sprint(known, " ", n.Load()), "decided without waiting, and times that it was verified")
	n.Store(0)
	client := w.httpClient(t, "h2", pair)
	for _, query := range []string{"", "?labelSelector=a%2C" + strings.Repeat("b", 2*quickQuery), "?x=1", "?labelSelector=a%2C" + strings.Repeat("b", 4*maxSelectors)} {
		w.do(t, client, w.request(t, "GET", "/api/v1/pods"+query, nil)).want(t, http.StatusOK, fmt.Sprintf("%.20s", query))
	}
	check.Same(t, 1, n.Load(), "times that one connection's certificates were verified")
}

// Long heads that fill the desk are refused, and keep no certificates from it, also not of their own address.
func TestChainsBesideLongHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, over, refused := newDesk(), make(chan struct{}), atomic.Int64{}
		for i := range 2 * maxAtDesk {
			go func() {
				leave, err := turn(t.Context(), d.heads, &Head{Remote: fmt.Sprintf("192.0.2.%d:%d", i%8, i)})
				if err != nil {
					refused.Add(1)
					return
				}
				<-over
				leave()
			}()
			synctest.Wait()
		}
		verified := make(chan error, 1)
		go func() {
			leave, err := turn(t.Context(), d.chains, &Head{Remote: "192.0.2.1:1"})
			if err == nil {
				leave()
			}
			verified <- err
		}()
		synctest.Wait()
		check.Same(t, [2]int{maxAtDesk, 0}, [2]int{int(refused.Load()), len(verified)}, "heads refused, and chains verified, while the slots are used")
		close(over)
		must.Do(t, <-verified)
	})
}

// A client whose certificates get no turn is refused, on the admin port, too.
func TestNoTurnForAChain(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.proxy.desk.chains = bound.NewQueue(1, 1)
	guarded := w.guard(t, w.proxy, func(http.ResponseWriter, *http.Request) {})
	alice := w.client.Issue(pki.Leaf{CommonName: "alice"})
	ask := func() answer {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, guarded.URL, nil))(t)
		return w.do(t, w.httpClient(t, "http/1.1", alice), r)
	}
	ask().want(t, http.StatusOK, "on the admin port, with a turn")
	leave := must.Get(w.proxy.desk.chains.Enter(t.Context(), bound.Stranger("192.0.2.2:1"), 1))(t)
	defer leave()
	ask().want(t, http.StatusTooManyRequests, "on the admin port, without a turn")
	d, known := w.proxy.decision(t.Context(), asBob("/api/v1/pods", ""), &authn.Conn{Peer: []*x509.Certificate{alice.Certificate}}, true)
	check.Same(t, fmt.Sprint(true, Refuse, errBusy("the front door")), fmt.Sprint(known, d.Action, d.Err), "known, and refused without a turn")
}

// In a small container parked requests have a part of its memory, as everything has.
func TestParkedInASmallContainer(t *testing.T) {
	old := debug.SetMemoryLimit(1 << 30)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
	_, err := newDesk().parked.Enter(t.Context(), bound.Source{User: "jane"}, 17<<20)
	check.Same(t, true, full(err), "more than a quarter of 64 MiB is refused: %v", err)
}

// Invalid tokens whose reviews hang do not delay a valid one of the same connection.
func TestParkedBehindBadTokens(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var generation atomic.Uint64
	gate := make(chan struct{})
	defer close(gate)
	w.proxy.cfg.Authn = must.Get(authn.New(authn.Config{
		ReviewGeneration: generation.Load,
		Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "good" {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
			}
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return nil, false, nil
		},
	}))(t)
	conn := &h2.ConnInfo{Context: t.Context(), Remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, Now: time.Now()}
	<-w.ask(conn, "good")
	generation.Add(1) // makes its next review necessary
	const bad = 2 * parkedAtOnce / 16
	for i := range bad {
		w.ask(conn, fmt.Sprint("bad-", i))
	}
	must.Soon(t, 5*time.Second, "what waits for its turn is counted, too", func() bool {
		return w.proxy.frames.memory.Held() >= bad*parkedSize
	})
	must.Come(t, 5*time.Second, "the valid token waits for no invalid one", w.ask(conn, "good")) // a review takes at most 10 s
}
