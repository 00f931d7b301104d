package proxy

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// Nobody passes the rules for himself because he adds another's token, which the local apiserver may accept no longer,
// has one of which a review sees only what is before a space, or one that is refused for a moment: a namespace's admin
// may take it out of its Secret, and put it back.
func TestUserOfTwoTokens(t *testing.T) {
	_, p := thinker(t, worldConfig{also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", byUser) }})
	for tokens, want := range map[[2]string]string{
		{"bob", "mallory"}: "401", {"bad", "mallory"}: "401", {"mallory", "mallory"}: "mallory", {"bob", "bob"}: "passes", {"bad", "bad"}: "401",
		{"", "mallory"}: "mallory", {"", "bob"}: "passes", {"", "mal lory"}: "401", {"", "mallory "}: "401",
	} {
		synctest.Test(t, func(t *testing.T) {
			p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, token != "bad", nil
			}}))(t)
			h := of(http.MethodGet, "/api/v1/namespaces/a/pods/b/exec", "", with(tokens[0]))
			socket := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(tokens[1]))
			h.Fields, h.Upgrade = append(h.Fields, hpack.HeaderField{Name: "sec-websocket-protocol", Value: socket + ",v4.channel.k8s.io"}), "websocket"
			for range 2 {
				d, _ := p.decision(t.Context(), h, nil, true)
				got := "passes"
				if d.Err != nil {
					got = fmt.Sprint(statusOf(d.Err))
				} else if d.Rule != nil {
					got = d.Rule.Name
				}
				check.Same(t, want, got, "with tokens %v", tokens)
			}
		})
	}
}

// Who was unknown because no review was answered does not stay so once one is.
func TestUnknownUserIsAskedForAgain(t *testing.T) {
	_, p := thinker(t, worldConfig{also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", byUser) }})
	synctest.Test(t, func(t *testing.T) {
		away, late := true, time.Duration(0)
		p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			if time.Sleep(late); away {
				return nil, false, errors.New("away")
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: token}}, true, nil
		}}))(t)
		ruledIn := func(ctx context.Context, token string) bool {
			d, _ := p.decision(ctx, of(http.MethodGet, "/api/v1/pods", "", with(token)), nil, true)
			return d.Rule != nil
		}
		ruled := func(token string) bool { return ruledIn(t.Context(), token) }
		check.Same(t, false, ruled("mallory"), "a rule is found while no review is answered")
		var again Decision
		for range 2 { // as on the engine's loop, and by ServeHTTP
			must.Do(t, p.decide(&again, of(http.MethodGet, "/api/v1/pods", "", with("mallory")), nil, time.Time{}))
		}
		check.Same(t, 2, testutil.ToFloat64(p.metrics.unknown), "requests whose user was not known")
		away = false
		check.Same(t, false, ruled("mallory"), "a rule is found before one is answered")
		check.Same(t, false, ruled("bob"), "a rule of another")
		check.Same(t, true, ruled("mallory"), "a rule is found afterwards")
		time.Sleep(time.Minute) // nothing is known any more
		left, leave := context.WithCancel(t.Context())
		leave()
		check.Same(t, false, ruledIn(left, "mallory"), "a rule is found for who has left")
		check.Same(t, true, ruled("mallory"), "a rule is found for who comes back")
		time.Sleep(time.Minute)
		late = callerTime + callerTime/4
		check.Same(t, false, ruled("mallory"), "a rule is found before a late answer")
		time.Sleep(callerTime)
		check.Same(t, true, ruled("mallory"), "a rule is found after it")
	})
}
