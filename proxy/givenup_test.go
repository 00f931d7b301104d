package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func quitter(name string) (*Decision, *Head) {
	return &Decision{Action: ToRemote, User: &user.DefaultInfo{Name: name}}, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
}

func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGivenUp()
		bob, h := quitter("bob")
		for range g.burst {
			g.ended(bob, h, 0)
		}
		if g.overLimit(bob, h) {
			t.Fatal("refused within the burst")
		}
		g.ended(bob, h, 0)
		if !g.overLimit(bob, h) {
			t.Fatal("not refused beyond the burst")
		}
		if alice, h := quitter("alice"); g.overLimit(alice, h) {
			t.Error("another user is refused, too")
		}
		time.Sleep(g.pause)
		if g.overLimit(bob, h) {
			t.Error("still refused after a pause")
		}
		for range 100 * g.burst { // without a call of overLimit in between
			g.ended(bob, h, 0)
		}
		full := time.Duration(g.burst) * g.pause
		if time.Sleep(full - g.pause); !g.overLimit(bob, h) {
			t.Error("accepted too early")
		}
		if time.Sleep(2 * g.pause); g.overLimit(bob, h) {
			t.Error("refused for longer than the bound")
		}
		if time.Sleep(full); g.overLimit(bob, h) || g.until.Load() != 0 {
			t.Error("requests still look for debts")
		}
	})
}

// Requests that ran for a while, and those that Fairlead answers itself, are not charged.
func TestGivenUpFree(t *testing.T) {
	g := newGivenUp()
	bob, h := quitter("bob")
	page := *bob
	page.Action = ToPage
	for range 2 * g.burst {
		g.ended(bob, h, quickly)
		g.ended(&page, h, 0)
	}
	if g.overLimit(bob, h) {
		t.Error("refused")
	}
}

func TestGivenUpBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no debt expires
		g := newGivenUp()
		for i := range 3 * maxAccounts * len(g.shards) {
			d, h := quitter(fmt.Sprint(i))
			g.ended(d, h, 0)
		}
		for i := range g.shards {
			if n := len(g.shards[i].debts); n > maxAccounts {
				t.Errorf("%d users", n)
			}
		}
	})
}

func TestPayer(t *testing.T) {
	bob := &user.DefaultInfo{Name: "bob"}
	h := &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
	address := bound.Source{Address: "192.0.2.1"}
	w := &world{authorities: authorities{pki.NewCA("clients"), pki.NewCA("front"), pki.NewCA("serving")}}
	authenticator := w.authenticator(t, worldConfig{})
	token, _ := authenticator.Read(&authn.Conn{}, authn.Head{{Name: "authorization", Value: "Bearer token-of-bob"}}, "")
	authenticator.Seen(&token, http.StatusOK)
	check.Same(t, authn.PoolProven, authenticator.Pool(&token), "pool of an accepted token")
	for _, tc := range []struct {
		name string
		d    Decision
		want account
	}{
		{"user", Decision{User: bob}, account{Source: bound.Source{User: "bob"}}},
		{"impersonator", Decision{User: bob, Impersonator: &user.DefaultInfo{Name: "root"}}, account{Source: bound.Source{User: "root"}}},
		{"nobody", Decision{}, account{Source: address}},
		{"anonymous", Decision{User: &user.DefaultInfo{Name: user.Anonymous}}, account{Source: address}},
		{"a token that anybody may have made up", Decision{Pool: authn.PoolUnproven, Credentials: token}, account{address, true}},
		{"a token that the local apiserver has accepted", Decision{Pool: authn.PoolProven, Credentials: token}, account{Source: bound.Source{User: "token-of-bob"}}},
	} {
		if got := accountOf(&tc.d, h); got != tc.want {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

// A user who gives up many requests, over any number of connections, reaches no backend for a
// while. Other users do.
func TestGivenUpIsRefused(t *testing.T) {
	for side, path := range map[string]string{"remote": remoteGV + "/widgets", "local": "/api/v1/pods"} {
		t.Run(side, func(t *testing.T) {
			everyWay(t, func(t *testing.T, proto string) {
				asked := make(chan struct{}, 1)
				hang := func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("X-Hang") == "" {
						_, _ = io.WriteString(w, "ok")
						return
					}
					asked <- struct{}{}
					<-r.Context().Done()
				}
				w := newWorld(t, worldConfig{remote: hang, local: hang})
				const burst = 10
				w.proxy.givenUp.burst, w.proxy.givenUp.pause = burst, time.Hour
				w.get(t, proto, path) // proves the token
				for range burst + 1 {
					w.giveUp(t, proto, path, asked)
				}
				refused := w.get(t, proto, path)
				refused.header.Del("Date")
				refused.header.Del("Audit-Id")
				if d := cmp.Diff(answer{http.StatusTooManyRequests, http.Header{
					"Cache-Control": {"no-cache, private"}, "Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(len(refused.body))}, "Retry-After": {"1"},
					"X-Content-Type-Options": {"nosniff"},
				}, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"this user has canceled too many requests, please try again later",` +
					`"reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429}` + "\n"}, refused, cmp.AllowUnexported(answer{})); d != "" {
					t.Errorf("refusal (-want +got):\n%s", d)
				}
				if n := testutil.ToFloat64(w.proxy.givenUp.refused); n != 1 {
					t.Errorf("%v refused", n)
				}
				w.do(t, w.httpClient(t, proto, nil), w.as(t, "alice", "GET", path, nil)).want(t, http.StatusOK, "somebody else")
			})
		})
	}
}

// A request whose body turns out malformed counts as given up, like one whose client disconnects.
func TestGivenUpByItsBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-r.Context().Done()
		}
	}})
	const burst = 2
	w.proxy.givenUp.burst, w.proxy.givenUp.pause = burst, time.Hour
	for range burst + 1 {
		res, _, _ := w.raw(t, "POST "+remoteGV+"/widgets", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\nzz\r\n")
		if res.StatusCode != http.StatusBadRequest || res.Header.Get("Retry-After") != "" {
			t.Errorf("answered with %d %v", res.StatusCode, res.Header)
		}
	}
	w.get(t, "http/1.1", remoteGV+"/widgets").want(t, http.StatusTooManyRequests)
}

// giveUp sends a request over its own connection, cancels it when the backend has received it, and
// returns when it was counted as given up.
func (w *world) giveUp(t *testing.T, proto, path string, asked <-chan struct{}) {
	t.Helper()
	before := w.given()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := w.as(t, "bob", "GET", path, nil).WithContext(ctx)
	r.Header.Set("X-Hang", "yes")
	var flying sync.WaitGroup
	flying.Go(func() {
		res, err := w.httpClient(t, proto, nil).Do(r)
		if err == nil {
			res.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
	})
	<-asked
	cancel()
	flying.Wait()
	for w.given() == before && t.Context().Err() == nil {
		runtime.Gosched()
	}
}

// given returns the total charge, of a world whose pause is an hour.
func (w *world) given() time.Duration {
	var n time.Duration
	g := w.proxy.givenUp
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, at := range s.debts {
			n += at.Round(g.pause)
		}
		s.mu.Unlock()
	}
	return n
}
