package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/reviews"
)

func credentials(a *Authenticator, token string) *Credentials {
	c := read(a, nil, bearer(token), "")
	return &c
}

// asker makes an Authenticator; a name may be "token@address".
func asker(ttl time.Duration) reviews.Start {
	return func(t *testing.T, count *reviews.Count, generation func() uint64) reviews.Asker {
		t.Helper()
		issued := func(token string) bool { return strings.HasSuffix(token, ".issued") }
		a := newAuthenticator(t, Config{Review: (&tokens{Count: count}).review, Issued: issued, ReviewGeneration: generation, TokenTTL: ttl})
		return reviews.Asker{No: ErrUnauthenticated, Ask: func(ctx context.Context, name string) (bool, error) {
			token, from, _ := strings.Cut(name, "@")
			c := credentials(a, token)
			u, err := a.Review(ctx, c, bound.Source{Address: from})
			return u != nil && u.GetName() == "owner of "+token, err
		}, Known: func(name string) (ok, known bool) {
			u, known := a.Cached(credentials(a, name), "")
			return u != nil, known
		}, Busy: func() float64 { return testutil.ToFloat64(a.reviews.WithLabelValues("busy")) }}
	}
}

func TestFresh(t *testing.T) {
	for _, tt := range []struct {
		token      string
		ttl, fresh time.Duration
		ok         bool
	}{
		{"good", 0, 10 * time.Second, true},
		{"bad", 0, 10 * time.Second, false},
		{"good", time.Minute, time.Minute, true},
		{"good.issued", time.Minute, 10 * time.Second, true}, // its issuer's exp may come sooner
		{"bad.issued", time.Minute, 10 * time.Second, false},
		{"good.issued", -1, 0, true},
		{"good", -1, 0, true},
		{"bad", -1, 0, false},
		{"fails", 0, 0, false},
		{"nobody", 0, 10 * time.Second, false},
		{"panic", 0, 0, false},
		{"good" + strings.Repeat("x", 1<<20), 0, 0, true},
	} {
		reviews.Fresh(t, asker(tt.ttl), tt.token, tt.ok, tt.fresh)
	}
}

func TestCoalescing(t *testing.T) { reviews.Coalesce(t, asker(0), "good") }

func TestBounds(t *testing.T) {
	for more := range 2 { // places of a token
		t.Run(fmt.Sprint(more, " more"), func(t *testing.T) {
			long := strings.Repeat("x", more*perPlace)
			name := func(source, i int) string { return fmt.Sprintf("good%d-%d%s@10.0.0.%d", source, i, long, source) }
			reviews.Bounds(t, asker(0), name, maxWaiting/(1+more), maxReviews)
		})
	}
}

func TestReviewErrors(t *testing.T) {
	metrics := prometheus.NewRegistry()
	var log strings.Builder
	a := newAuthenticator(t, Config{Review: newTokens().review, Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics}})
	for token, want := range map[string]string{
		"bad": errBadToken.Error(), "fails": "connection refused", "panic": "it panicked",
		"nobody": errBadToken.Error(), "nothing": "without a user", "userless": "without a user",
	} {
		_, err := a.Review(t.Context(), credentials(a, token), bound.Source{})
		check.Fault(t, want, err, "%s", token)
		check.Same(t, want == errBadToken.Error(), errors.Is(err, ErrUnauthenticated), "%s is refused", token)
		check.Same(t, false, err != nil && token != "panic" && want != errBadToken.Error() && strings.Contains(err.Error(), token), "the error contains the token: %v", err)
	}
	check.Same(t, 1, strings.Count(log.String(), "\n"), "lines of log: %s", log.String())
	check.Has(t, log.String(), "fixture_test.go") // the stack of the panic
	two := read(a, nil, append(bearer("bad"), head("sec-websocket-protocol", "x,"+protocolOf("fails"))...), "websocket")
	_, err := a.Review(t.Context(), &two, bound.Source{})
	check.Same(t, true, errors.Is(err, ErrUnauthenticated) && strings.Contains(err.Error(), "connection refused"), "two tokens: %v", err)
	must.Get(a.Review(t.Context(), credentials(a, "good"), bound.Source{}))(t)
	for _, token := range []string{"good", "bad"} {
		c := credentials(a, token)
		_, known := a.Cached(c, "")
		check.Same(t, true, known, "%s is cached", token)
		// A request that comes just after the answer needs no review, either.
		u, err := a.review(c.Token, bound.Source{})
		check.Same(t, [2]bool{token == "good", token == "bad"}, [2]bool{u != nil, errors.Is(err, ErrUnauthenticated)}, "%s, late: a user, and refused", token)
	}
	for result, want := range map[string]float64{"authenticated": 1, "refused": 2, "error": 5, "busy": 0} {
		check.Same(t, want, testutil.ToFloat64(a.reviews.WithLabelValues(result)), "reviews counted as %s", result)
	}
	check.Same(t, 2, testutil.ToFloat64(a.hits), "cache hits")
	check.Same(t, 5, must.Get(testutil.GatherAndCount(metrics))(t), "series")
	none := newAuthenticator(t, Config{Anonymous: true})
	c := credentials(none, "good")
	u, known := none.Cached(c, "")
	check.Same(t, true, u == nil && known, "nobody is known without a reviewer: %v, %v", u, known)
}

// A slow review must not hide a later one that was answered before it: rules let pass whom no review can name.
func TestAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a *Authenticator
		a = newAuthenticator(t, Config{Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "slow" {
				time.Sleep(2 * time.Second)
				_, _ = a.Review(t.Context(), credentials(a, "bad"), bound.Source{})
			}
			return nil, false, nil
		}})
		_, _ = a.Review(t.Context(), credentials(a, "slow"), bound.Source{})
		check.Same(t, true, a.Answering(time.Second), "a review that began just now was answered")
	})
}

func TestAnonymous(t *testing.T) {
	anonymous := describe(&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}})
	paths := []string{"/livez", "/readyz"}
	for _, tt := range []struct {
		cfg        Config
		path, want string
	}{
		{Config{}, "/apis", "nobody"},
		{Config{AnonymousPaths: []string{"/apis"}}, "/apis", "nobody"},
		{Config{Anonymous: true}, "/apis", anonymous},
		{Config{Anonymous: true, AnonymousPaths: paths}, "/readyz", anonymous},
		{Config{Anonymous: true, AnonymousPaths: paths}, "/readyz/", "nobody"},
	} {
		u, known := newAuthenticator(t, tt.cfg).Cached(&Credentials{}, tt.path)
		check.Same(t, tt.want, describe(u), "%s, anonymous %v on %q", tt.path, tt.cfg.Anonymous, tt.cfg.AnonymousPaths)
		check.Same(t, true, known, "%s: known", tt.path)
	}
}

// A flood of invalid tokens neither evicts valid ones nor grows without bound.
func TestBadTokensPushNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that no token expires
		a := newAuthenticator(t, Config{Review: newTokens().review})
		good := credentials(a, "good")
		must.Get(a.Review(t.Context(), good, bound.Source{}))(t)
		for i := range 6000 {
			_, _ = a.Review(t.Context(), credentials(a, fmt.Sprint("bad", i)), bound.Source{})
		}
		u, known := a.Cached(good, "")
		check.Same(t, true, u != nil && known, "the valid token is still cached")
		n := 0
		for i := range 6000 {
			if a.refused.Get(newToken(fmt.Sprint("bad", i)), time.Time{}) != nil {
				n++
			}
		}
		check.Within(t, 2048, 4096, n, "invalid tokens that are cached")
	})
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
			check.Same(t, false, proven(a, c.Token), "proven by status %d", status)
		}
		for _, status := range []int{101, 200, 201, 206, 301, 304, 403, 404, 405, 409, 410, 415, 422, 499} {
			a.Seen(c, status)
			pool(PoolProven)
			check.Same(t, c.Token.payer(), c.Payer, "the payer")
			a.Seen(c, http.StatusUnauthorized)
			pool(PoolUnproven)
		}
		// In use it stays proven: after half of its minute, a use renews it.
		for used, want := range map[int]Pool{29: PoolUnproven, 31: PoolProven, 40: PoolProven} {
			a.Seen(c, 200)
			time.Sleep(time.Duration(used) * time.Second)
			a.Seen(c, 200)
			time.Sleep(time.Duration(61-used) * time.Second)
			pool(want)
			a.Seen(c, http.StatusUnauthorized)
		}
		// A 401 drops the token's user from the cache.
		must.Get(a.Review(t.Context(), c, bound.Source{}))(t)
		a.Seen(c, 401)
		_, known := a.Cached(c, "")
		check.Same(t, false, known, "the user of a refused token is still cached")
		// A review that refuses a token ends its proof.
		for _, err := range []error{nil, fmt.Errorf("%w: revoked", ErrUnauthenticated)} {
			a.Seen(c, 200)
			pool(PoolProven)
			review = func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, err }
			check.Is(t, ErrUnauthenticated, check.Err(a.Review(t.Context(), c, bound.Source{})), "a revoked token")
			pool(PoolUnproven)
			time.Sleep(time.Minute) // until the refusal expires
		}
		check.Same(t, 2, testutil.ToFloat64(a.reviews.WithLabelValues("refused")), "reviews counted as refused")
		// With two tokens it is unknown which one was accepted.
		two := read(a, nil, append(bearer("bad"), head("sec-websocket-protocol", "x,"+protocolOf("good"))...), "websocket")
		a.Seen(&two, 200)
		check.Same(t, false, proven(a, two.Token) || a.Pool(&two) != PoolUnproven, "an invalid token was proven by the valid one beside it")
		// A request without a token proves none.
		a.Seen(&Credentials{}, 200)
		check.Same(t, false, proven(a, Token{}), "the empty token is proven")
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
		check.Same(t, false, strings.Contains(out.String(), secret), "%q was printed:\n%s", secret, out.String())
	}
	check.Has(t, out.String(), "<masked>")
	check.Same(t, [3]string{"<none>", "", "hunter2"}, [3]string{Token{}.String(), Token{}.Secret(), c.Token.Secret()}, "no token, its secret, and another's")
}
