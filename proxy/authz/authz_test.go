package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/reviews"
)

// asked answers reviews by user name and counts them.
type asked struct {
	*reviews.Count
	last atomic.Pointer[authorizer.AttributesRecord]
}

func newAsked() *asked { return &asked{Count: &reviews.Count{}} }

func (r *asked) review(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if rec, ok := a.(authorizer.AttributesRecord); ok {
		r.last.Store(&rec)
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
	return &Attributes{
		User: &user.DefaultInfo{Name: name, Groups: []string{"g"}}, Verb: "get", ResourceRequest: true,
		Group: "wardle.example.com", Version: "v1", Resource: "flunders", Namespace: "default", Name: "f",
	}
}

func TestAuthorize(t *testing.T) {
	masters := get("bob")
	masters.User = &user.DefaultInfo{Name: "bob", Groups: []string{"x", user.SystemPrivilegedGroup}}
	nobody := get("")
	nobody.User = nil
	remote := get("bob")
	remote.Remote = true
	tests := []struct {
		name    string
		cfg     Config
		a       *Attributes
		want    Decision
		wantErr string
		asked   int64
	}{
		{name: "allowed", a: get("alice"), want: Decision{true, "RBAC: allowed"}, asked: 1},
		{name: "no opinion is no", a: get("bob"), asked: 1},
		{name: "denied", a: get("denied"), want: Decision{Reason: "no"}, asked: 1},
		{name: "allowed in spite of an error", a: get("partial"), want: Decision{Allowed: true}, asked: 1},
		{name: "an error is no", a: get("broken"), want: Decision{Reason: "unreachable"}, wantErr: "connection refused", asked: 1},
		{name: "a panic is no", a: get("panic"), wantErr: "panicked", asked: 1},
		{name: "system:masters", a: masters, want: Decision{Allowed: true}},
		{name: "no user", a: nobody, wantErr: "no user"},
		{name: "a remote is reviewed", a: remote, asked: 1},
		{name: "a remote left to itself", cfg: Config{LeaveRemotes: true}, a: remote, want: Decision{Allowed: true}},
		{name: "not a remote", cfg: Config{LeaveRemotes: true}, a: get("bob"), asked: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, log := newAsked(), new(logbook.Book)
			tt.cfg.Review, tt.cfg.Logger = r.review, slog.New(slog.NewTextHandler(log, nil))
			z := newAuthorizer(t, tt.cfg)
			got, err := z.Authorize(t.Context(), tt.a)
			check.Same(t, tt.want, got, "answers")
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
			check.Same(t, tt.asked, r.N.Load(), "reviews")
			check.Same(t, tt.wantErr == "panicked", strings.Contains(log.String(), "authz_test.go"), "the stack of a panic is logged")
			result := "denied"
			switch {
			case tt.wantErr != "":
				result = "error"
			case got.Allowed:
				result = "allowed"
			}
			for _, name := range []string{"allowed", "denied", "error", "busy"} {
				want := 0.
				if name == result {
					want = float64(tt.asked)
				}
				check.Same(t, want, testutil.ToFloat64(z.metrics.reviews.WithLabelValues(name)), "reviews counted as %s", name)
			}
		})
	}
}

// The open paths match those of upstream's own authorizer. Nobody else to ask, nothing more is
// open.
func TestPaths(t *testing.T) {
	allow := []string{"/healthz", "readyz", "/open/*", "/"}
	upstream := must.Get(path.NewAuthorizer(allow))(t)
	z := newAuthorizer(t, Config{AllowPaths: allow})
	for _, p := range []string{
		"/healthz", "healthz", "/healthz/", "/healthz/ping", "/readyz", "/livez", "/open/", "/open", "/open/x", "/", "", "//", "/Healthz", "//healthz",
	} {
		for _, resource := range []bool{true, false} {
			a := &Attributes{User: &user.DefaultInfo{Name: "bob"}, Verb: "get", Path: p, ResourceRequest: resource}
			want, _ := must.Get2(upstream.Authorize(t.Context(), authorizer.AttributesRecord{User: a.User, Verb: "get", Path: p, ResourceRequest: resource}))(t)
			if got, _ := z.Cached(a); got.Allowed != (want == authorizer.DecisionAllow) {
				t.Errorf("%q (resource %v): allowed %v, upstream says %v", p, resource, got.Allowed, want)
			}
		}
	}
	if _, err := New(Config{AllowPaths: []string{"/a*b"}}); err == nil {
		t.Error("a wildcard in the middle was accepted")
	}
	d := newAuthorizer(t, Config{})
	for _, p := range []string{"/healthz", "/readyz", "/livez"} {
		if got, _ := d.Cached(&Attributes{User: &user.DefaultInfo{Name: "bob"}, Verb: "get", Path: p}); !got.Allowed {
			t.Errorf("%s is not open by default", p)
		}
	}
	if got, err := d.Authorize(t.Context(), get("alice")); got.Allowed || err != nil {
		t.Errorf("%v, %v without a reviewer", got, err)
	}
	if got, known := d.Cached(&Attributes{}); got.Allowed || !known {
		t.Errorf("%v, %v without a user", got, known)
	}
}

// After a change of any field, a cached answer must not be returned, even if all hashes collide.
func TestKeyDistinguishes(t *testing.T) {
	base := func() *Attributes {
		return &Attributes{
			User: &user.DefaultInfo{Name: "n", UID: "u", Groups: []string{"a", "b"}, Extra: map[string][]string{"k": {"v", "w"}, "l": {"x"}}},
			Verb: "list", ResourceRequest: true, Group: "g", Version: "v", Resource: "r", Subresource: "s", Namespace: "ns", Name: "o",
			FieldSelector: "f=1", LabelSelector: "l=1",
		}
	}
	as := func(name, uid string, groups []string, extra map[string][]string) func(*Attributes) {
		return func(a *Attributes) { a.User = &user.DefaultInfo{Name: name, UID: uid, Groups: groups, Extra: extra} }
	}
	groups, x := []string{"a", "b"}, map[string][]string{"k": {"v", "w"}, "l": {"x"}}
	changes := map[string]func(*Attributes){
		"verb":             func(a *Attributes) { a.Verb = "watch" },
		"group":            func(a *Attributes) { a.Group = "h" },
		"version":          func(a *Attributes) { a.Version = "w" },
		"resource":         func(a *Attributes) { a.Resource = "q" },
		"subresource":      func(a *Attributes) { a.Subresource = "" },
		"namespace":        func(a *Attributes) { a.Namespace = "" },
		"name":             func(a *Attributes) { a.Name = "p" },
		"moved over":       func(a *Attributes) { a.Group, a.Version = "gv", "" },
		"field selector":   func(a *Attributes) { a.FieldSelector = "f=2" },
		"label selector":   func(a *Attributes) { a.LabelSelector = "l=2" },
		"not a resource":   func(a *Attributes) { a.ResourceRequest, a.Path = false, "g" },
		"user":             as("m", "u", groups, x),
		"uid":              as("n", "t", groups, x),
		"group order":      as("n", "u", []string{"b", "a"}, x),
		"fewer groups":     as("n", "u", []string{"a"}, x),
		"joined groups":    as("n", "u", []string{"ab"}, x),
		"group with nul":   as("n", "u", []string{"a\x00b"}, x),
		"no extra":         as("n", "u", groups, nil),
		"extra value":      as("n", "u", groups, map[string][]string{"k": {"v"}, "l": {"x"}}),
		"extra swapped":    as("n", "u", groups, map[string][]string{"l": {"v", "w"}, "k": {"x"}}),
		"extra value move": as("n", "u", groups, map[string][]string{"k": {"v"}, "l": {"w", "x"}}),
	}
	for _, collide := range []bool{false, true} {
		for name, change := range changes {
			z := newAuthorizer(t, Config{Review: newAsked().review})
			if collide {
				z.cache.narrow = func(uint64) uint64 { return 7 }
			}
			z.cache.put(base(), Decision{Allowed: true}, time.Now().Add(time.Hour), 0)
			if _, ok := z.Cached(base()); !ok {
				t.Fatalf("%s: the same question missed the cache", name)
			}
			other := base()
			change(other)
			if d, ok := z.Cached(other); ok {
				t.Errorf("%s (colliding %v): got answer %v, cached for another question", name, collide, d)
			}
			if base().key() == other.key() {
				t.Errorf("%s: the same key", name)
			}
			if !strings.Contains(name, "extra") && base().hash(z.cache.seed) == other.hash(z.cache.seed) {
				t.Errorf("%s: the same hash", name)
			}
		}
	}
}

// known recognizes itself.
type known struct{ user.DefaultInfo }

func (k *known) Is(other user.Info) bool { return k == other }

// A user that recognizes itself is neither compared by field nor copied. Of others everything is
// copied, with the strings, which may share memory with a request's buffers.
func TestClone(t *testing.T) {
	a := get("")
	first, second := &known{user.DefaultInfo{Name: "first"}}, &known{user.DefaultInfo{Name: "second"}}
	if a.User = first; a.clone().User != first || !sameUser(first, first) || sameUser(first, second) {
		t.Error("a user that recognizes itself was copied, or taken for another one")
	}
	all := func(text string) *Attributes {
		return &Attributes{
			User: &user.DefaultInfo{Name: text, UID: text, Groups: []string{text}, Extra: map[string][]string{"k": {text}}},
			Verb: text, Group: text, Version: text, Resource: text, Subresource: text, Namespace: text, Name: text, Path: text, FieldSelector: text, LabelSelector: text,
		}
	}
	full, empty := all("alice"), all("")
	copied := testing.AllocsPerRun(100, func() { full.clone() }) - testing.AllocsPerRun(100, func() { empty.clone() })
	c := full.clone()
	if copied != 4+10 || c.User == full.User || c.key() != full.key() || c.Path != full.Path {
		t.Errorf("%v of 14 strings were copied, to %+v", copied, c)
	}
	check.Same(t, 5+5+(5+16)+(1+16)+(5+16), userSize(c.User), "its user's size")
}

func TestPathIsNoPartOfAResourceQuestion(t *testing.T) {
	r, metrics := newAsked(), prometheus.NewRegistry()
	z := newAuthorizer(t, Config{Review: r.review, Metrics: metrics})
	for i := range 3 {
		a := get("alice")
		a.Path = fmt.Sprint("/apis/", i)
		must.Get(z.Authorize(t.Context(), a))(t)
	}
	check.Same(t, 1, r.N.Load(), "reviews")
	check.Same(t, 2, testutil.ToFloat64(z.metrics.hits), "cache hits")
	check.Same(t, 5, must.Get(testutil.GatherAndCount(metrics))(t), "series")
}

func TestTTL(t *testing.T) {
	for _, tt := range []struct {
		user        string
		allow, deny time.Duration
		fresh       time.Duration // still cached after it; zero: never cached
	}{
		{"alice", 0, 0, 9 * time.Second},
		{"bob", 0, 0, 9 * time.Second},
		{"alice", time.Minute, time.Second, 59 * time.Second},
		{"bob", time.Hour, time.Minute, 59 * time.Second},
		{"alice", -1, time.Minute, 0},
		{"broken", time.Minute, time.Minute, 0},
	} {
		t.Run(fmt.Sprint(tt.user, tt.allow, tt.deny), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newAsked()
				z := newAuthorizer(t, Config{Review: r.review, AllowTTL: tt.allow, DenyTTL: tt.deny})
				_, _ = z.Authorize(t.Context(), get(tt.user))
				pass(tt.fresh)
				if _, ok := z.Cached(get(tt.user)); ok != (tt.fresh > 0) {
					t.Fatalf("cached after %v: %v", tt.fresh, ok)
				}
				pass(time.Second)
				if _, ok := z.Cached(get(tt.user)); ok {
					t.Error("still cached a second later")
				}
				_, _ = z.Authorize(t.Context(), get(tt.user))
				check.Same(t, 2, r.N.Load(), "reviews")
			})
		})
	}
}

// kept counts the answers to n questions that are still cached.
func kept(c *cache, n int, ask func(int) *Attributes) (found int) {
	for i := range n {
		if _, ok := c.get(ask(i)); ok {
			found++
		}
	}
	return found
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	z := newAuthorizer(t, Config{Review: newAsked().review})
	ask := func(i int) *Attributes {
		a := get("alice")
		a.Name = fmt.Sprint(i)
		return a
	}
	const n = maxEntries * 5 / 4
	for i := range n {
		z.cache.put(ask(i), Decision{Allowed: true}, time.Now().Add(time.Hour), 0)
	}
	if _, ok := z.Cached(ask(n - 1)); !ok {
		t.Error("the newest answer was dropped")
	}
	if found := kept(z.cache, n, ask); found > maxEntries || found < maxEntries/2 {
		t.Errorf("%d answers are cached, want at most %d", found, maxEntries)
	}
	// A front proxy asserts any groups, and each of its requests has a user of its own.
	grouped := func(i int) *Attributes {
		a := ask(i)
		a.User = &user.DefaultInfo{Name: "alice", Groups: []string{strings.Repeat("g", maxCached)}, Extra: map[string][]string{"scopes": {strings.Repeat("s", maxCached)}}}
		return a
	}
	large := func(i int) *Attributes {
		a := ask(i)
		a.Name += strings.Repeat("x", maxCached-10)
		return a
	}
	for size, ask := range map[int]func(int) *Attributes{maxCached: large, 2 * maxCached: grouped} {
		const long = 16_000
		for i := range long {
			z.cache.put(ask(i), Decision{}, time.Now().Add(time.Hour), 0)
		}
		if found := kept(z.cache, long, ask); found*size > maxBytes || found == 0 {
			t.Errorf("%d answers of %d bytes are cached, want at most %d", found, size, maxBytes/size)
		}
	}
	big := get("alice")
	big.Name += strings.Repeat("x", maxCached-big.size())
	if d, err := z.Authorize(t.Context(), big); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if _, ok := z.Cached(big); ok {
		t.Error("the answer to a huge question was cached")
	}
}

func TestReviewGetsTheSelectors(t *testing.T) {
	tests := []struct{ name, field, label, want string }{
		{"none", "", "", "field [] <nil>, label  <nil>"},
		{"both", "metadata.name=a,x!=b", "app in (a,b),!c", "field [{= metadata.name a} {!= x b}] <nil>, label app in (a,b), !c <nil>"},
		{"everything", "", ",", "field [] <nil>, label  found ','"},
		{"broken", "a", "=", "field [] invalid selector"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newAsked()
			a := get("alice")
			a.Verb, a.FieldSelector, a.LabelSelector = "list", tt.field, tt.label
			must.Get(newAuthorizer(t, Config{Review: r.review}).Authorize(t.Context(), a))(t)
			rec := r.last.Load()
			got := fmt.Sprintf("field %v %v, label %v %v", rec.FieldSelectorRequirements, rec.FieldSelectorParsingErr, rec.LabelSelectorRequirements, rec.LabelSelectorParsingErr)
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestCachedAllocatesNothing(t *testing.T) {
	z := newAuthorizer(t, Config{Review: newAsked().review})
	must.Get(z.Authorize(t.Context(), get("alice")))(t)
	a := get("alice")
	a.User = &user.DefaultInfo{Name: "alice", Groups: []string{"g"}, Extra: map[string][]string{}}
	check.Same(t, 0, testing.AllocsPerRun(100, func() { z.Cached(a) }), "allocations")
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { time.Sleep(d) }
