package tokens

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki/issuer"
)

func TestTokenFile(t *testing.T) {
	for _, tc := range []struct{ name, text, wrong string }{
		{"empty", "", ""},
		{"good", "a,alice,1,\"dev,ops\"\nb,bob,2\n", ""},
		{"two columns", "a,alice\n", "line 1 has 2 columns"},
		{"no token", "a,alice,1\n,bob,2\n", "line 2 has an empty token"},
		{"no user", "a,,1\n", "line 1 has no user"},
		{"twice", "a,alice,1\na,bob,2\n", "line 2 has the token of another line"},
		{"quotes", "\"s3cr3t,alice,1\n", "reading tokens"},
	} {
		err := New(Config{}).TakeTokens([]byte(tc.text))
		check.Fault(t, tc.wrong, err, "%s", tc.name)
		check.Same(t, false, strings.Contains(fmt.Sprint(err), "s3cr3t"), "%s: a token in the error", tc.name)
	}
}

func TestTokensOfAFile(t *testing.T) {
	k := New(Config{})
	accepts := func(token string) bool { _, ok, _ := k.Review(t.Context(), token); return ok }
	check.Same(t, false, accepts("a"), "accepted before there is a file")
	take := func(text string) {
		t.Helper()
		before := k.Generation()
		must.Do(t, k.TakeTokens([]byte(text)))
		check.Same(t, false, k.Generation() == before, "the generation after another file")
	}
	take("a,alice,1,\"dev,ops\"\nb,bob,2\n")
	r, _ := must.Get2(k.Review(t.Context(), "a"))(t)
	check.Same[user.Info](t, &user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"dev", "ops"}}, r.User, "the user")
	check.Same(t, false, accepts("A"), "another token")
	take("b,bob,2\n")
	check.Same(t, false, accepts("a"), "a removed token")
	check.Fault(t, "line 1", k.TakeTokens([]byte("broken\n")), "an invalid file")
	check.Same(t, true, accepts("b"), "the token of the last valid file")
}

// head begins a configuration, and is one without content.
const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

func TestConfiguration(t *testing.T) {
	const username = `claimMappings: {username: {claim: sub, prefix: ""}}`
	good := issuer.Start(t).Config("")
	for _, tc := range []struct {
		name, text, wrong, anonymous string
	}{
		{"nothing in it", head, "", "false false []"},
		{"not anonymous", head + "anonymous: {enabled: false}", "", "true false []"},
		{"anonymous", head + "anonymous: {enabled: true}", "", "true true []"},
		{"anonymous on paths", head + "anonymous: {enabled: true, conditions: [{path: /livez}, {path: /version}]}", "", "true true [/livez /version]"},
		{"empty", "", "reading authentication configuration", ""},
		{"another kind", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n", "it is *apiserver.AuthorizationConfiguration", ""},
		{"unknown field", head + "jwts: []\n", `unknown field "jwts"`, ""},
		{"plain http", head + `jwt: [{issuer: {url: "http://x", audiences: [a]}, ` + username + "}]\n", "URL scheme must be https", ""},
		{"no audience", head + `jwt: [{issuer: {url: "https://x"}, ` + username + "}]\n", "jwt[0].issuer.audiences: Required value", ""},
		{"bad expression", head + `jwt: [{issuer: {url: "https://x", audiences: [a]}, claimMappings: {username: {expression: "claims."}}}]`, "jwt[0].claimMappings.username.expression", ""},
		{"egress", head + `jwt: [{issuer: {url: "https://x", audiences: [a], egressSelectorType: cluster}, ` + username + "}]\n", "egressSelectorType", ""},
		{"conditions without enabled", head + "anonymous: {enabled: false, conditions: [{path: /livez}]}\n", "enabled should be set to true", ""},
		// It has no issuers while the local apiserver authenticates all tokens.
		{"judged", head, "", "false false []"},
		{"judged, with an issuer", good, "the local apiserver authenticates all tokens", ""},
	} {
		k := New(Config{Judged: strings.HasPrefix(tc.name, "judged")})
		err := k.TakeConfig([]byte(tc.text))
		check.Fault(t, tc.wrong, err, "%s", tc.name)
		if configured, allowed, paths := k.Anonymous(); err == nil {
			check.Same(t, tc.anonymous, fmt.Sprint(configured, allowed, paths), "%s: about anonymous requests: configured, allowed, paths", tc.name)
		}
	}
}

func TestIssuer(t *testing.T) {
	i, other := issuer.Start(t), issuer.Start(t)
	k := New(Config{})
	must.Do(t, errors.Join(k.TakeTokens([]byte("a,alice,1\n")), k.TakeConfig([]byte(i.Config("oidc:")))))
	must.Run(t, k.Run)
	good := i.Token(t, nil)
	known := func(token string) string {
		r, ok, err := k.Review(t.Context(), token)
		if !ok || err != nil {
			return ""
		}
		return r.User.GetName() + " " + strings.Join(r.User.GetGroups(), ",")
	}
	must.Soon(t, 30*time.Second, "known", func() bool { return known(good) != "" })
	check.Same(t, "oidc:jane readers", known(good), "the user")
	check.Same(t, "alice ", known("a"), "the user of the file beside it")
	for name, token := range map[string]string{
		"another audience": i.Token(t, map[string]any{"aud": "other"}),
		"over":             i.Token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"a rule":           i.Token(t, map[string]any{"exp": time.Now().Add(48 * time.Hour).Unix()}),
		"without user":     i.Token(t, map[string]any{"sub": nil}),
		"another issuer":   other.Token(t, nil),
		"forged":           other.Token(t, map[string]any{"iss": i.URL}),
		"cut":              good[:len(good)-4],
		"no JWT":           "abc",
	} {
		r, ok, err := k.Review(t.Context(), token)
		check.Same(t, "false <nil>", fmt.Sprint(ok, " ", err), "%s: accepted as %v", name, r)
	}

	before := k.Generation()
	must.Do(t, k.TakeConfig([]byte(i.Config("new:"))))
	must.Soon(t, 30*time.Second, "replaced", func() bool { return strings.HasPrefix(known(good), "new:") })
	check.Same(t, false, k.Generation() == before, "the generation after another configuration")

	// A configuration whose issuer does not answer is not activated. The next one is, without
	// waiting for it. Meanwhile no token of either is the cluster's.
	dead := issuer.Start(t)
	text, waits := dead.Config("dead:"), dead.Token(t, nil)
	dead.Close()
	must.Do(t, k.TakeConfig([]byte(text)))
	check.Same(t, "new:jane readers", known(good), "the former issuer's user, while the next one is unreachable")
	check.Same(t, [2]bool{true, true}, [2]bool{k.Issued(good), k.Issued(waits)}, "while a configuration waits: of the former issuer, of the new one")
	must.Do(t, k.TakeConfig([]byte(other.Config(""))))
	must.Soon(t, 30*time.Second, "the other issuer's", func() bool { return known(other.Token(t, nil)) != "" && known(good) == "" })
	check.Same(t, [2]bool{}, [2]bool{k.Issued(good), k.Issued(waits)}, "issuers that were removed")
}

// jwt makes a token that is valid enough for Issued.
func jwt(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

// A token with the issuer of a configured JWT authenticator is authenticated here, whatever else it
// contains. Other tokens are unknown.
func TestIssued(t *testing.T) {
	i := issuer.Start(t)
	k := New(Config{})
	check.Same(t, false, k.Issued(i.Token(t, nil)), "an issuer without a configuration")
	before := k.Generation()
	must.Do(t, k.TakeConfig([]byte(i.Config("oidc:"))))
	check.Same(t, false, k.Generation() == before, "the generation after another configuration")
	url := must.Get(json.Marshal(i.URL))(t)
	for _, tc := range []struct {
		name, token string
		want        bool
	}{
		{"good", i.Token(t, nil), true},
		{"another audience", i.Token(t, map[string]any{"aud": "elsewhere"}), true},
		{"expired, unsigned", jwt(`{"iss":` + string(url) + `,"exp":1}`), true},
		{"escaped", jwt(`{"iss":` + strings.ReplaceAll(string(url), "/", `\/`) + `}`), true},
		{"the last one counts", jwt(`{"iss":"https://elsewhere","iss":` + string(url) + `}`), true},
		{"the first one does not", jwt(`{"iss":` + string(url) + `,"iss":"https://elsewhere"}`), false},
		{"as upstream reads it", jwt(`{"ISS":` + string(url) + `}`), true},
		{"a slash more", jwt(`{"iss":"` + i.URL + `/"}`), false},
		{"elsewhere", jwt(`{"iss":"https://kubernetes.default.svc.cluster.local"}`), false},
		{"no text", jwt(`{"iss":7}`), false},
		{"no JSON", jwt(`{`), false},
		{"no JWT", "alice-token", false},
		{"two dots too many", jwt(`{"iss":`+string(url)+`}`) + "..", false},
		{"padded", strings.Replace(jwt(`{"iss":`+string(url)+` }`), ".c2ln", "=.c2ln", 1), false},
		{"nothing", "", false},
	} {
		check.Same(t, tc.want, k.Issued(tc.token), "%s", tc.name)
		if tc.want {
			continue
		}
		// The authenticators do not know the other tokens, either: they are left to the cluster.
		r, ok, err := authenticator.TokenFunc(k.Review).AuthenticateToken(t.Context(), tc.token)
		check.Same(t, "false <nil>", fmt.Sprint(ok, " ", err), "%s: accepted as %v", tc.name, r)
	}
	google := "https://accounts.google.com" // which omits the scheme in its tokens
	must.Do(t, k.TakeConfig([]byte(strings.ReplaceAll(i.Config(""), i.URL, google))))
	check.Same(t, true, k.Issued(jwt(`{"iss":"accounts.google.com"}`)), "of Google")
	must.Do(t, k.TakeConfig([]byte(head)))
	check.Same(t, false, k.Issued(i.Token(t, nil)), "a removed issuer")
}

// A configuration whose issuer does not answer in time is tried again, and activated when it does.
// One that is replaced while it waits for keys is given up, and stops fetching them.
func TestLateIssuer(t *testing.T) {
	first, late, dead := issuer.Start(t), issuer.Start(t), issuer.Start(t)
	var answers atomic.Bool
	whole := late.Server.Config.Handler
	late.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		whole.ServeHTTP(w, r)
	})
	log := make(logbook.Lines, 1000)
	k := New(Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	k.wait, k.pause = time.Second, time.Millisecond
	take := func(text string) { must.Do(t, k.TakeConfig([]byte(text))) }
	want := func(message string) {
		t.Helper()
		check.Has(t, <-log, `msg="authentication configuration `+message)
	}
	take(first.Config(""))
	must.Run(t, k.Run)
	want("activated")
	take(late.Config(""))
	want(`not activated, the previous one stays" err="waiting for`)
	keys, dropped := k.Faults()
	check.Fault(t, "", keys, "the active issuer")
	check.Fault(t, "waiting for the keys of issuers", dropped, "the new configuration")
	answers.Store(true)
	must.Soon(t, 30*time.Second, "activated", func() bool {
		_, ok, _ := k.Review(t.Context(), late.Token(t, nil))
		return ok
	})
	for line := ""; !strings.Contains(line, "configuration activated"); line = <-log { // it was tried several times
	}

	k.wait = time.Hour
	waits := dead.Config("")
	dead.Close()
	take(head)
	want("activated")
	before := goleak.IgnoreCurrent()
	take(waits)
	must.Soon(t, 30*time.Second, "waited for", func() bool { return goleak.Find(before) != nil })
	take(head)
	want(`not activated, the previous one stays" err="waiting for`)
	want("activated")
	must.Soon(t, 30*time.Second, "its keys are not fetched any more", func() bool { return goleak.Find(before) == nil })
}

// A replaced configuration stops fetching keys when the last requests that use it are over.
func TestReplacedConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Config{})
		old, cancel := context.WithCancel(t.Context())
		k.issuers.Store(&issuers{cancel: cancel})
		must.Do(t, k.TakeConfig([]byte(head)))
		before := k.Generation()
		must.Do(t, k.replace(t.Context()))
		check.Same(t, false, k.Generation() == before, "the generation after the replacement")
		for _, tc := range []struct {
			after time.Duration
			want  bool
		}{{retire - 1, false}, {1, true}} {
			time.Sleep(tc.after)
			synctest.Wait()
			check.Same(t, tc.want, old.Err() != nil, "stopped, %s later", tc.after)
		}
	})
}

// While an issuer's keys are missing, its tokens are neither accepted nor refused. Those of others are.
func TestKeysAreMissing(t *testing.T) {
	dead, live := issuer.Start(t), issuer.Start(t)
	_, second, _ := strings.Cut(live.Config(""), "jwt:\n")
	text, token := dead.Config("")+second, dead.Token(t, nil)
	dead.Close()
	k := New(Config{})
	must.Do(t, k.TakeConfig([]byte(text)))
	_, _, err := k.Review(t.Context(), token)
	check.Fault(t, "its issuer is not set up yet", err, "a review before Run")
	must.Do(t, k.replace(t.Context()))
	_, _, err = k.Review(t.Context(), token)
	check.Fault(t, "oidc", err, "a review without keys")
	keys, dropped := k.Faults()
	check.Fault(t, "oidc", keys, "an active issuer")
	check.Fault(t, "", dropped, "the configuration taken last")
	good := live.Token(t, nil)
	must.Soon(t, 30*time.Second, "known", func() bool { _, ok, _ := k.Review(t.Context(), good); return ok })
	over := live.Token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})
	_, ok, err := k.Review(t.Context(), over)
	check.Same(t, "false <nil>", fmt.Sprint(ok, " ", err), "an expired token of an issuer whose keys are known")
}
