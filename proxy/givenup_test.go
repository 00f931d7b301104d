package proxy

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func quitter(name string) (*Decision, *Head) {
	return &Decision{Action: ToRemote, User: &user.DefaultInfo{Name: name}}, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
}

func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGivenUp()
		bob, h := quitter("bob")
		page := *bob
		page.Action = ToPage
		watch := *bob
		watch.LongRunning = true
		for range g.burst {
			g.ended(bob, h, statusClientGone, 0)
			g.ended(bob, h, statusClientGone, quickly) // ran for a while
			g.ended(&page, h, statusClientGone, 0)     // answered here
			g.ended(&watch, h, http.StatusOK, 0)
		}
		check.Same(t, false, g.overLimit(bob, h), "refused within the burst")
		g.ended(bob, h, statusClientGone, 0)
		check.Same(t, true, g.overLimit(bob, h), "refused beyond the burst")
		alice, _ := quitter("alice")
		check.Same(t, false, g.overLimit(alice, h), "another user is refused, too")
		time.Sleep(g.pause)
		check.Same(t, false, g.overLimit(bob, h), "still refused after a pause")
		for range 100 * g.burst { // without a call of overLimit in between
			g.ended(bob, h, statusClientGone, 0)
		}
		full := time.Duration(g.burst) * g.pause
		time.Sleep(full - g.pause)
		check.Same(t, true, g.overLimit(bob, h), "refused until the bound")
		time.Sleep(2 * g.pause)
		check.Same(t, false, g.overLimit(bob, h), "refused for longer than the bound")
		time.Sleep(full)
		check.Same(t, false, g.overLimit(bob, h) || g.until.Load() != nil, "requests still look for debts")
	})
}

func TestPayer(t *testing.T) {
	bob := &user.DefaultInfo{Name: "bob"}
	h := &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
	address := bound.Source{Address: "192.0.2.1"}
	w := &world{authorities: authorities{pki.NewCA("clients"), pki.NewCA("front"), pki.NewCA("serving")}}
	authenticator := w.authenticator(t, worldConfig{})
	token, _ := authenticator.Read(&authn.Conn{}, authn.Head{{Name: "authorization", Value: "Bearer token-of-bob"}}, "", time.Time{})
	authenticator.Seen(&token, http.StatusOK)
	check.Same(t, authn.PoolProven, authenticator.Pool(&token), "pool of an accepted token")
	for _, tc := range []struct {
		name string
		d    Decision
		want account
	}{
		{"user", Decision{User: bob}, account{Source: bound.Source{User: "bob"}}},
		{"impersonator", Decision{User: bob, Impersonator: &user.DefaultInfo{Name: "root"}}, account{Source: bound.Source{User: "root"}}},
		{"nobody", Decision{Pool: authn.PoolUnproven}, account{Source: address}},
		{"anonymous", Decision{User: &user.DefaultInfo{Name: user.Anonymous}}, account{Source: address}},
		{"a token that anybody may have made up", Decision{Pool: authn.PoolUnproven, Credentials: token}, account{address, true}},
		{"a token that the local apiserver has accepted", Decision{Pool: authn.PoolProven, Credentials: token}, account{Source: bound.Source{User: token.Payer}}},
	} {
		check.Same(t, true, accountOf(&tc.d, h) == tc.want, "%s: %+v", tc.name, accountOf(&tc.d, h))
	}
}

// A request whose body turns out malformed counts as given up, like one whose client disconnects.
func TestGivenUpByItsBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			<-r.Context().Done()
		}
	}})
	w.proxy.givenUp.burst, w.proxy.givenUp.pause = 2, time.Hour
	for range 3 {
		res, _, _ := w.raw(t, "POST "+remoteGV+"/widgets", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\nzz\r\n")
		check.Same(t, http.StatusBadRequest, res.StatusCode, "status")
		check.Same(t, "", res.Header.Get("Retry-After"), "Retry-After")
	}
	must.Soon(t, 10*time.Second, "one too many is refused", func() bool { return w.get(t, "http/1.1", remoteGV+"/widgets").status == http.StatusTooManyRequests })
}
