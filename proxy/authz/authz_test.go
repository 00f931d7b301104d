package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/reviews"
)

type asked struct {
	*reviews.Count
	last atomic.Pointer[authorizer.AttributesRecord]
}

func newAsked() *asked { return &asked{Count: &reviews.Count{}} }

func (r *asked) review(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if rec, ok := a.(*authorizer.AttributesRecord); ok {
		r.last.Store(rec)
	}
	if err := r.Wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	switch a.GetUser().GetName() {
	case "alice":
		return authorizer.DecisionAllow, "RBAC: allowed", nil
	case "partial":
		return authorizer.DecisionAllow, "", errors.New("a role is missing")
	case "denied":
		return authorizer.DecisionDeny, "no", nil
	case "broken":
		return authorizer.DecisionNoOpinion, "unreachable", errors.New("connection refused")
	case "panic":
		panic("boom")
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newAuthorizer(t testing.TB, cfg Config) *Authorizer {
	t.Helper()
	return must.Get(New(cfg))(t)
}

func get(name string) *Attributes {
	return &Attributes{User: &user.DefaultInfo{Name: name, Groups: []string{"g"}}, RequestInfo: request.RequestInfo{
		Verb: "get", IsResourceRequest: true,
		APIGroup: "wardle.example.com", APIVersion: "v1", Resource: "flunders", Namespace: "default", Name: "f",
	}}
}

func asks(u user.Info, path string) *Attributes {
	return &Attributes{User: u, RequestInfo: request.RequestInfo{Verb: "get", Path: path}}
}

// Each question is asked twice, by Authorize and by Upstream, which share a cache. Upstream
// bypasses it for questions with selectors, valid or not. A review gets all that Upstream gets.
func TestAuthorize(t *testing.T) {
	never := func() bool { return false }
	masters := func(a *Attributes) {
		a.User = &user.DefaultInfo{Name: "bob", Groups: []string{"x", user.SystemPrivilegedGroup}}
	}
	nobody := func(a *Attributes) { a.User = nil }
	remote := func(a *Attributes) { a.Remote = true }
	long := func(a *Attributes) { a.Namespace = strings.Repeat("n", maxAsked) }
	metrics := func(a *Attributes) { *a = *asks(a.User, "/metrics") }
	selecting := func(field, label string) func(*Attributes) {
		return func(a *Attributes) { a.Verb, a.FieldSelector, a.LabelSelector = "list", field, label }
	}
	allowed := Decision{true, "RBAC: allowed"}
	const none = "field [] <nil>, label  <nil>"
	for _, tt := range []struct {
		name, user string
		change     func(*Attributes)
		cfg        Config
		alone      bool // there is nobody to ask
		want       Decision
		wantErr    string
		asked      int64  // of two questions
		selectors  string // of the review; the beginning
	}{
		{name: "allowed", user: "alice", want: allowed, asked: 1, selectors: none},
		{name: "no opinion is no", user: "bob", asked: 1},
		{name: "denied", user: "denied", want: Decision{Reason: "no"}, asked: 1},
		{name: "allowed in spite of an error", user: "partial", want: Decision{Allowed: true}, asked: 1},
		{name: "an error is no", user: "broken", want: Decision{Reason: "unreachable"}, wantErr: "connection refused", asked: 2},
		{name: "a panic is no", user: "panic", wantErr: "panicked", asked: 2},
		{name: "a subresource", user: "alice", change: func(a *Attributes) { a.Subresource = "status" }, want: allowed, asked: 1},
		{name: "a path", user: "alice", change: metrics, want: allowed, asked: 1},
		{name: "system:masters", change: masters, want: Decision{Allowed: true}},
		{name: "system:masters, with fields", change: func(a *Attributes) { masters(a); a.FieldSelector = "x=y" }, want: Decision{Allowed: true}},
		{name: "a remote is reviewed", user: "bob", change: remote, asked: 1},
		{name: "a remote left to itself", user: "bob", change: remote, cfg: Config{LeaveRemotes: true}, want: Decision{Allowed: true}},
		{name: "not a remote", user: "bob", cfg: Config{LeaveRemotes: true}, asked: 1},
		{name: "without a reviewer", user: "alice", alone: true},
		{name: "without a reviewer, with fields", user: "alice", change: selecting("x=y", ""), alone: true},
		{name: "too long to be asked", user: "alice", change: long},
		{name: "long, with fields", user: "alice", change: func(a *Attributes) { long(a); a.FieldSelector = "x=y" }},
		{name: "nobody", change: nobody, wantErr: "no user"},
		{name: "nobody, with fields", change: func(a *Attributes) { nobody(a); a.FieldSelector = "x=y" }, wantErr: "no user"},
		// A refusal by an apiserver that has not read its rules yet is neither returned nor cached.
		{name: "not ready, allowed", user: "alice", cfg: Config{Ready: never}, want: allowed, asked: 1},
		{name: "not ready, no opinion", user: "bob", cfg: Config{Ready: never}, wantErr: errNotReady.Error(), asked: 2},
		{name: "not ready, denied", user: "denied", cfg: Config{Ready: never}, wantErr: errNotReady.Error(), asked: 2},
		{name: "ready, denied", user: "denied", cfg: Config{Ready: func() bool { return true }}, want: Decision{Reason: "no"}, asked: 1},
		{
			name: "selectors", user: "alice", change: selecting("metadata.name=a,x!=b", "app in (a,b),!c"), want: allowed, asked: 1,
			selectors: "field [{= metadata.name a} {!= x b}] <nil>, label app in (a,b), !c <nil>",
		},
		{name: "fields", user: "alice", change: selecting("x=y", ""), want: allowed, asked: 1, selectors: "field [{= x y}] <nil>, label  <nil>"},
		{name: "labels", user: "alice", change: selecting("", "a=b"), want: allowed, asked: 1, selectors: "field [] <nil>, label a=b <nil>"},
		{name: "everything", user: "alice", change: selecting("", ","), want: allowed, asked: 1, selectors: "field [] <nil>, label  found ','"},
		{name: "invalid fields", user: "alice", change: selecting("a", ""), want: allowed, asked: 1, selectors: "field [] invalid selector"},
		{name: "invalid labels", user: "alice", change: selecting("", "="), want: allowed, asked: 1, selectors: "field [] <nil>, label  found '='"},
	} {
		for _, upstream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, upstream %v", tt.name, upstream), func(t *testing.T) {
				r, log, metrics := newAsked(), new(logbook.Book), prometheus.NewRegistry()
				tt.cfg.Logger, tt.cfg.Metrics = slog.New(slog.NewTextHandler(log, nil)), metrics
				if !tt.alone {
					tt.cfg.Review = r.review
				}
				z := newAuthorizer(t, tt.cfg)
				a := get(tt.user)
				if tt.change != nil {
					tt.change(a)
				}
				if upstream && a.FieldSelector+a.LabelSelector != "" {
					tt.asked *= 2
				}
				if upstream && a.Remote { // kube-apiserver's filters do not know remotes
					tt.cfg.LeaveRemotes, tt.want, tt.asked = false, Decision{}, 1
				}
				for range 2 {
					var got Decision
					var err error
					if upstream {
						d, reason, e := z.Upstream().Authorize(t.Context(), a.record())
						got, err = Decision{d == authorizer.DecisionAllow, reason}, e
						check.Same(t, false, d == authorizer.DecisionDeny, "it denies")
					} else {
						got, err = z.Authorize(t.Context(), a)
					}
					check.Same(t, tt.want, got, "answers")
					check.Fault(t, tt.wantErr, err, "the error")
					if a.IsResourceRequest { // a path is no part of the question
						a.Path = "/elsewhere"
					}
				}
				check.Same(t, tt.wantErr == "panicked", strings.Contains(log.String(), "authz_test.go"), "the stack of a panic is logged")
				result := "denied"
				switch {
				case tt.wantErr != "":
					result = "error"
				case tt.want.Allowed:
					result = "allowed"
				}
				check.Same(t, tt.asked, r.N.Load(), "reviews")
				for _, name := range []string{"allowed", "denied", "error", "busy"} {
					want := 0.
					if name == result {
						want = float64(tt.asked)
					}
					check.Same(t, want, testutil.ToFloat64(z.reviews.WithLabelValues(name)), "reviews counted as %s", name)
				}
				check.Same(t, float64(tt.asked%2), testutil.ToFloat64(z.hits), "cache hits")
				check.Same(t, 5, must.Get(testutil.GatherAndCount(metrics))(t), "series")
				if tt.asked > 0 {
					rec := r.last.Load()
					got := fmt.Sprintf("field %v %v, label %v %v",
						rec.FieldSelectorRequirements, rec.FieldSelectorParsingErr, rec.LabelSelectorRequirements, rec.LabelSelectorParsingErr)
					check.Same(t, true, strings.HasPrefix(got, tt.selectors), "reviewed %s, want %s", got, tt.selectors)
					if a.IsResourceRequest {
						a.Path = rec.Path
					}
					check.Same(t, spelledRecord(a.record()), spelledRecord(rec), "the review")
				}
			})
		}
	}
	d, err := newAuthorizer(t, Config{Review: newAsked().review}).Authorize(t.Context(), get("panic"))
	check.Same(t, true, err != nil && !d.Allowed, "refused without a log after a panic: %+v, %v", d, err)
}

func spelledRecord(a authorizer.Attributes) string {
	r := *a.(*authorizer.AttributesRecord)
	r.User = nil
	return fmt.Sprint(a.GetUser(), r)
}

// The open paths match those of upstream's own authorizer.
func TestPaths(t *testing.T) {
	allow := []string{"/healthz", "readyz", "/open/*", "/"}
	upstream := must.Get(path.NewAuthorizer(allow))(t)
	z := newAuthorizer(t, Config{AllowPaths: allow})
	for _, p := range []string{
		"/healthz", "healthz", "/healthz/", "/healthz/ping", "/readyz", "/livez", "/open/", "/open", "/open/x", "/", "", "//", "/Healthz", "//healthz",
	} {
		for _, resource := range []bool{true, false} {
			a := asks(&user.DefaultInfo{Name: "bob"}, p)
			a.IsResourceRequest = resource
			want, _ := must.Get2(upstream.Authorize(t.Context(), authorizer.AttributesRecord{User: a.User, Verb: "get", Path: p, ResourceRequest: resource}))(t)
			got, _ := z.Cached(a)
			check.Same(t, want == authorizer.DecisionAllow, got.Allowed, "%q (resource %v): allowed as upstream", p, resource)
		}
	}
	check.Same(t, true, check.Err(New(Config{AllowPaths: []string{"/a*b"}})) != nil, "a wildcard in the middle is refused")
	d := newAuthorizer(t, Config{})
	for _, p := range []string{"/healthz", "/readyz", "/livez"} {
		got, _ := d.Cached(asks(&user.DefaultInfo{Name: "bob"}, p))
		check.Same(t, true, got.Allowed, "%s is open by default", p)
	}
	got, known := d.Cached(&Attributes{})
	check.Same(t, [2]bool{false, true}, [2]bool{got.Allowed, known}, "allowed without a user, and known")
}

// asker makes an Authorizer; a name may be "user/object".
func asker(cfg Config) reviews.Start {
	return func(t *testing.T, count *reviews.Count, generation func() uint64) reviews.Asker {
		t.Helper()
		cfg.Review, cfg.Generation = (&asked{Count: count}).review, generation
		z := newAuthorizer(t, cfg)
		question := func(name string) *Attributes {
			user, object, _ := strings.Cut(name, "/")
			a := get(user)
			a.Name = object
			return a
		}
		return reviews.Asker{Ask: func(ctx context.Context, name string) (bool, error) {
			d, err := z.Authorize(ctx, question(name))
			return d.Allowed, err
		}, Known: func(name string) (ok, known bool) {
			d, known := z.Cached(question(name))
			return d.Allowed, known
		}, Busy: func() float64 { return testutil.ToFloat64(z.reviews.WithLabelValues("busy")) }}
	}
}

func TestFresh(t *testing.T) {
	words := get("alice").words()
	for _, tt := range []struct {
		name        string
		allow, deny time.Duration
		ok          bool
		fresh       time.Duration
	}{
		{"alice", 0, 0, true, 10 * time.Second},
		{"bob", 0, 0, false, 10 * time.Second},
		{"alice", time.Minute, time.Second, true, time.Minute},
		{"bob", time.Hour, time.Minute, false, time.Minute},
		{"alice", -1, time.Minute, true, 0},
		{"broken", time.Minute, time.Minute, false, 0},
		{"alice/" + strings.Repeat("x", maxCached-len(strings.Join(words[:], ""))+1), 0, 0, true, 0},
	} {
		reviews.Fresh(t, asker(Config{AllowTTL: tt.allow, DenyTTL: tt.deny}), tt.name, tt.ok, tt.fresh)
	}
}

func TestCoalescing(t *testing.T) { reviews.Coalesce(t, asker(Config{}), "alice") }

func TestBounds(t *testing.T) {
	reviews.Bounds(t, asker(Config{}), func(source, i int) string { return fmt.Sprintf("user-%d/%d", source, i) }, maxWaiting, maxReviews)
}

// The number of answers is bounded, and their size. A front proxy asserts any groups, and each of
// its requests has a user of its own.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	groups := &user.DefaultInfo{Name: "alice", Groups: []string{strings.Repeat("g", maxCached)}, Extra: map[string][]string{"scopes": {strings.Repeat("s", maxCached)}}}
	for _, tt := range []struct {
		name    string
		user    user.Info
		long    int // bytes of each object's name
		n, most int
	}{
		{"many", get("alice").User, 0, maxEntries * 5 / 4, maxEntries},
		{"long", get("alice").User, maxCached - 10, 16_000, maxBytes / maxCached},
		{"of many groups", groups, 0, 16_000, maxBytes / (2 * maxCached)},
	} {
		c := newCache(func() uint64 { return 0 })
		ask := func(i int) *Attributes {
			a := get("")
			a.User, a.Name = tt.user, fmt.Sprint(i, strings.Repeat("x", tt.long))
			return a
		}
		for i := range tt.n {
			c.put(string(ask(i).appendKey(nil)), Decision{}, time.Now().Add(time.Hour), 0)
		}
		found := 0
		for i := range tt.n {
			if _, ok := c.get(ask(i)); ok {
				found++
			}
		}
		_, ok := c.get(ask(tt.n - 1))
		check.Same(t, true, ok && found <= tt.most && found >= tt.most/2, "%s: %d answers are cached, want at most %d; the newest one: %v", tt.name, found, tt.most, ok)
	}
}

// A review that outlives its request keeps nothing of the target, of which the question's texts are parts.
func TestReviewsKeepNoTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		z := newAuthorizer(t, Config{Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			<-hangs
			return authorizer.DecisionNoOpinion, "", nil
		}})
		ctx, leave := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		before := heap()
		for i := range 50 {
			a := get("alice")
			a.Path = fmt.Sprint(i, strings.Repeat("x", 1<<20))
			a.Name = a.Path[:2]
			asking.Go(func() { _, _ = z.Authorize(ctx, a) })
		}
		synctest.Wait()
		leave()
		asking.Wait()
		kept := heap() - before
		check.Same(t, true, kept <= 10<<20, "a bound for %d bytes that are kept of 50 MiB", kept)
		close(hangs)
	})
}
