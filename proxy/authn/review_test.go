package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/memo"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/reviews"
)

func credentials(a *Authenticator, token string) *Credentials {
	c := read(a, nil, bearer(token), "")
	return &c
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { time.Sleep(d) }

func TestReviewCaches(t *testing.T) {
	for _, tt := range []struct {
		token string
		ttl   time.Duration
		fresh time.Duration // still cached after it; zero: never cached
		ok    bool
	}{
		{"good", 0, 9 * time.Second, true},
		{"bad", 0, 9 * time.Second, false},
		{"good", time.Minute, 59 * time.Second, true},
		{"good", -1, 0, true},
		{"bad", -1, 0, false},
		{"fails", 0, 0, false},
		{"nobody", 0, 0, false},
		{"panic", 0, 0, false},
		{"good" + strings.Repeat("x", 1<<20), 0, 0, true},
	} {
		t.Run(fmt.Sprintf("%.8s %v", tt.token, tt.ttl), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newTokens()
				a := newAuthenticator(t, Config{Review: api.review, TokenTTL: tt.ttl})
				c := credentials(a, tt.token)
				if _, known := a.Cached(c, ""); known {
					t.Fatal("known before a review")
				}
				if u, err := a.Review(t.Context(), c, ""); (u != nil) != tt.ok || (err == nil) != tt.ok {
					t.Fatalf("%v, %v", u, err)
				}
				if tt.fresh > 0 { // a request that comes just after the answer needs no review, either
					id, late := a.review(c.Token, bound.Source{})
					u, again := a.Review(t.Context(), c, "")
					if (id != nil) != tt.ok || (late == nil) != tt.ok || (u != nil) != tt.ok || (again == nil) != tt.ok || api.N.Load() != 1 {
						t.Errorf("late: %v, %v, again: %v, %v, reviewed %d times", id, late, u, again, api.N.Load())
					}
				}
				pass(tt.fresh)
				u, known := a.Cached(c, "")
				if known != (tt.fresh > 0) || (u != nil) != (known && tt.ok) {
					t.Fatalf("after %v: %v, known %v", tt.fresh, u, known)
				}
				pass(time.Second)
				if _, known := a.Cached(c, ""); known {
					t.Error("still cached a second later")
				}
				_, _ = a.Review(t.Context(), c, "")
				check.Same(t, 2, api.N.Load(), "reviews")
			})
		})
	}
}

// asker makes an Authenticator; a name may be "token@address".
func asker(t *testing.T, count *reviews.Count, generation func() uint64) reviews.Asker {
	t.Helper()
	a := newAuthenticator(t, Config{Review: (&tokens{Count: count}).review, ReviewGeneration: generation})
	return reviews.Asker{No: ErrUnauthenticated, Ask: func(ctx context.Context, name string) (bool, error) {
		token, from, _ := strings.Cut(name, "@")
		c := credentials(a, token)
		c.From.Address = from
		u, err := a.Review(ctx, c, "")
		return u != nil && u.GetName() == "owner of "+token, err
	}, Known: func(name string) bool {
		_, known := a.Cached(credentials(a, name), "")
		return known
	}}
}

func TestRevoked(t *testing.T) { reviews.Revoked(t, asker, "good", "bad") }

func TestReviewCoalesces(t *testing.T) { reviews.Coalesce(t, asker, "good") }

func TestNoReviewInVain(t *testing.T) { reviews.InVain(t, asker, "new") }

func TestReviewIsBounded(t *testing.T) {
	t.Parallel()
	reviews.Bounds(t, asker, func(i int) string { return fmt.Sprintf("good%d@10.0.0.%d", i, i%5) }, maxWaiting, maxReviews)
}

func TestReviewErrors(t *testing.T) {
	metrics := prometheus.NewRegistry()
	var log strings.Builder
	a := newAuthenticator(t, Config{Review: newTokens().review, Logger: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics})
	for token, want := range map[string]string{
		"bad": "invalid bearer token", "fails": "connection refused", "panic": "it panicked",
		"nobody": "without a user", "nothing": "without a user", "userless": "without a user",
	} {
		_, err := a.Review(t.Context(), credentials(a, token), "")
		if err == nil || errors.Is(err, ErrUnauthenticated) != (token == "bad") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", token, err)
		}
		if err != nil && token != "panic" && token != "bad" && strings.Contains(err.Error(), token) {
			t.Errorf("the error contains the token: %v", err)
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "fixture_test.go") {
		t.Errorf("log without the stack of the panic: %q", text)
	}
	two := read(a, nil, append(bearer("bad"), head("sec-websocket-protocol", "x,"+protocolOf("fails"))...), "websocket")
	if _, err := a.Review(t.Context(), &two, ""); !errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("two tokens: %v", err)
	}
	must.Get(a.Review(t.Context(), credentials(a, "good"), ""))(t)
	for _, token := range []string{"good", "bad"} {
		if _, known := a.Cached(credentials(a, token), ""); !known {
			t.Errorf("%s: not cached", token)
		}
	}
	for result, want := range map[string]float64{"authenticated": 1, "refused": 1, "error": 6, "busy": 0} {
		check.Same(t, want, testutil.ToFloat64(a.metrics.reviews.WithLabelValues(result)), "reviews counted as %s", result)
	}
	check.Same(t, 2, testutil.ToFloat64(a.metrics.hits), "cache hits")
	check.Same(t, 5, must.Get(testutil.GatherAndCount(metrics))(t), "series")
	if _, err := TokenReview(nil); err == nil {
		t.Error("a reviewer without a client")
	}
	if _, err := a.Review(t.Context(), &Credentials{}, ""); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := a.Review(t.Context(), &Credentials{Kind: KindInvalid, Err: errEncoding}, ""); !errors.Is(err, errEncoding) {
		t.Errorf("invalid: %v", err)
	}
	none := newAuthenticator(t, Config{Anonymous: true})
	c := credentials(none, "good")
	if u, known := none.Cached(c, ""); u != nil || !known {
		t.Errorf("%v, %v without a reviewer", u, known)
	}
	if u, err := none.Review(t.Context(), c, ""); u != nil || !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("%v, %v without a reviewer", u, err)
	}
}

func TestAnonymous(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		path string
		want bool
	}{
		{"off", Config{}, "/apis", false},
		{"off with paths", Config{AnonymousPaths: []string{"/apis"}}, "/apis", false},
		{"on", Config{Anonymous: true}, "/apis", true},
		{"on for a path", Config{Anonymous: true, AnonymousPaths: []string{"/livez", "/readyz"}}, "/readyz", true},
		{"on for other paths", Config{Anonymous: true, AnonymousPaths: []string{"/livez", "/readyz"}}, "/readyz/", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAuthenticator(t, tt.cfg)
			u, known := a.Cached(&Credentials{}, tt.path)
			if !known || (u != nil) != tt.want {
				t.Fatalf("%v, %v", u, known)
			}
			if u != nil && describe(u) != describe(&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}) {
				t.Error(describe(u))
			}
		})
	}
}

// A flood of invalid tokens neither evicts valid ones nor grows without bound.
func TestBadTokensPushNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that no token expires
		a := newAuthenticator(t, Config{Review: newTokens().review})
		good := credentials(a, "good")
		must.Get(a.Review(t.Context(), good, ""))(t)
		for i := range 6000 {
			_, _ = a.Review(t.Context(), credentials(a, fmt.Sprint("bad", i)), "")
		}
		if u, known := a.Cached(good, ""); u == nil || !known {
			t.Error("the valid token was evicted")
		}
		n := 0
		for i := range 6000 {
			if _, _, ok := a.refused.get(newToken(fmt.Sprint("bad", i)), time.Time{}); ok {
				n++
			}
		}
		if n > 4096 || n < 2048 {
			t.Errorf("%d invalid tokens are cached", n)
		}
	})
}

// The bytes of tokens are bounded, and no token takes a great part of them: package memo.
func TestCacheBytesAreBounded(t *testing.T) {
	const most = 1 << 20
	c := newCache[int](memo.Config{Entries: 1 << 14, Bytes: most})
	long := strings.Repeat("x", most/1000-4)
	for i := range 4000 {
		c.put(newToken(fmt.Sprintf("%s%04d", long, i)), i, time.Now().Add(time.Hour), 0)
	}
	found := 0
	for i := range 4000 {
		token := newToken(fmt.Sprintf("%s%04d", long, i))
		if v, _, ok := c.get(token, time.Time{}); ok && v == i {
			found++
		}
		if c.drop(token); found > 0 {
			if _, _, ok := c.get(token, time.Time{}); ok {
				t.Fatal("a dropped token is cached")
			}
		}
	}
	if size := found * (most / 1000); size > most || size < most/2 {
		t.Errorf("%d bytes of tokens are cached, want at most %d", size, most)
	}
	huge := newToken(strings.Repeat("x", most/1000+1))
	c.put(huge, 1, time.Now().Add(time.Hour), 0)
	if _, _, ok := c.get(huge, time.Time{}); ok {
		t.Error("a huge token is cached")
	}
}

func TestProven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		review := newTokens().review
		a := newAuthenticator(t, Config{Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			return review(ctx, token)
		}})
		c := credentials(a, "good")
		pool := func(want Pool) {
			t.Helper()
			check.Same(t, want, a.Pool(c), "pool")
		}
		pool(PoolUnproven)
		for _, status := range []int{100, 103, 199, 204, 400, 401, 408, 413, 417, 429, 431, 500, 502, 503, 504} {
			a.Seen(c, status)
			if a.Proven(c.Token) {
				t.Errorf("proven by status %d", status)
			}
		}
		for _, status := range []int{101, 200, 201, 206, 301, 304, 403, 404, 405, 409, 410, 415, 422, 499} {
			a.Seen(c, status)
			pool(PoolProven)
			a.Seen(c, http.StatusUnauthorized)
			pool(PoolUnproven)
		}
		// In use it stays proven: after half of its minute, a use renews it.
		for used, want := range map[int]Pool{29: PoolUnproven, 31: PoolProven, 40: PoolProven} {
			a.Seen(c, 200)
			pass(time.Duration(used) * time.Second)
			a.Seen(c, 200)
			pass(time.Duration(61-used) * time.Second)
			pool(want)
			a.Seen(c, http.StatusUnauthorized)
		}
		// A 401 drops the token's user from the cache.
		must.Get(a.Review(t.Context(), c, ""))(t)
		a.Seen(c, 401)
		if _, known := a.Cached(c, ""); known {
			t.Error("the user of a refused token is still cached")
		}
		// A review that refuses a token ends its proof.
		for _, err := range []error{nil, fmt.Errorf("%w: revoked", ErrUnauthenticated)} {
			a.Seen(c, 200)
			pool(PoolProven)
			review = func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, err }
			if _, err := a.Review(t.Context(), c, ""); !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("a revoked token: %v", err)
			}
			pool(PoolUnproven)
			pass(time.Minute) // until the refusal expires
		}
		check.Same(t, 2, testutil.ToFloat64(a.metrics.reviews.WithLabelValues("refused")), "reviews counted as refused")
		// With two tokens it is unknown which one was accepted.
		two := read(a, nil, append(bearer("bad"), head("sec-websocket-protocol", "x,"+protocolOf("good"))...), "websocket")
		a.Seen(&two, 200)
		if a.Proven(two.Token) || a.Pool(&two) != PoolUnproven {
			t.Error("an invalid token was proven by the valid one beside it")
		}
		// A request without a token proves none.
		a.Seen(&Credentials{}, 200)
		if a.Proven(Token{}) {
			t.Error("the empty token is proven")
		}
	})
}

// No verb prints a token, at any depth, and no logger does.
func TestTokensAreNotPrinted(t *testing.T) {
	a := newAuthenticator(t, Config{})
	c := read(a, nil, append(bearer("hunter2"), head("sec-websocket-protocol", "x,"+protocolOf("hunter2-too"))...), "websocket")
	type request struct {
		creds  Credentials
		Public *Credentials
	}
	var out strings.Builder
	for _, v := range []any{c, &c, c.Token, &c.Token, request{c, &c}, []Credentials{c}, map[Token]Token{c.Token: c.Token}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(h).Info("seen", "creds", v)
		}
		if j, err := json.Marshal(v); err == nil {
			out.Write(j)
		}
	}
	for _, secret := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), "104 117 110 116 101 114 50"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q was printed:\n%s", secret, out.String())
		}
	}
	if !strings.Contains(out.String(), "<masked>") || (Token{}).String() != "<none>" || (Token{}).Secret() != "" || c.Token.Secret() != "hunter2" {
		t.Error("the output does not show that there is a token")
	}
}

// A few tokens are used by many goroutines, for the race detector.
func TestConcurrently(t *testing.T) {
	names := &HeaderNames{Username: []string{"X-Remote-User"}, Group: []string{"X-Remote-Group"}}
	a := newAuthenticator(t, Config{Review: newTokens().review, TokenTTL: time.Millisecond, ProvenTTL: time.Millisecond, Target: func() (*HeaderNames, bool) { return names, true }})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				token := []string{"good", "bad", fmt.Sprintf("good-%d-%d", g, i)}[i%3]
				c := credentials(a, token)
				u, known := a.Cached(c, "")
				if !known {
					u, _ = a.Review(t.Context(), c, "")
				}
				f, err := a.Headers(nil, u) // refuses nobody
				if (err == nil) != (token != "bad") || err == nil && f[0].Value != "owner of "+token {
					t.Errorf("%s is %s: %v, %v", token, describe(u), f, err)
				}
				a.Pool(c)
				a.Seen(c, []int{200, 401}[i%2])
			}
		})
	}
	wg.Wait()
}
