package needs

import (
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// One list for all readers: a gate, a check that users notice and one that they do not.
func TestChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gate atomic.Pointer[error]
		var seen, beside atomic.Pointer[answer.Check]
		beside.Store(&answer.Check{})
		become := func(g error, c answer.Check) { gate.Store(&g); seen.Store(&c) }
		become(nil, answer.Check{})
		gated := func() error { return *gate.Load() }
		metrics := prometheus.NewRegistry()
		c := Config{
			Checks: []Check{
				{
					Name: "gate", Gate: func(*http.Request) error { return gated() },
					Look: func(time.Time) answer.Check { return *beside.Load() },
				},
				{Name: "seen", Look: func(time.Time) answer.Check { return *seen.Load() }},
			},
			Ready: func() bool { return gated() == nil }, Runbook: "https://runbook",
		}
		c.Metrics = metrics
		n := New(c)
		gates, others := n.Gates()
		scrape := func(when string, gate, seen, readyz, users string) {
			t.Helper()
			want := "# TYPE fairlead_ready gauge\nfairlead_ready{check=\"gate\"} " + gate + "\nfairlead_ready{check=\"readyz\"} " + readyz +
				"\nfairlead_ready{check=\"seen\"} " + seen + "\nfairlead_ready{check=\"users\"} " + users + "\n"
			got := must.Get(metrics.Gather())(t)
			want = "# HELP fairlead_ready " + got[0].GetHelp() + "\n" + want
			check.Fault(t, "", testutil.GatherAndCompare(metrics, strings.NewReader(want)), "%s", when)
		}
		check.Same(t, Unknown, n.List()[0].Status, "before anything was asked")
		scrape("before anything was asked", "1", "1", "1", "1")
		stop := must.Run(t, n.Run)
		defer stop()
		synctest.Wait()
		begun := time.Now()
		check.Same(t, []answer.Check{{Name: "gate", Status: Passed, Since: begun}, {Name: "seen", Status: Passed, Since: begun}}, n.List(), "all pass")
		forbidden := answer.Check{Status: Failed, Message: "forbidden", Users: "Users get 503"}
		become(nil, forbidden)
		time.Sleep(3 * Pace)
		synctest.Wait()
		want := answer.Check{Name: "seen", Status: Failed, Since: begun.Add(Pace), Message: "forbidden", Users: "Users get 503", Runbook: "https://runbook"}
		check.Same(t, want, n.List()[1], "one fails")
		scrape("users notice", "1", "0", "1", "0")
		shown := gates[0].Check(nil) == nil && others[1].Check(nil) != nil
		check.Same(t, true, shown, "the check that users notice ends readiness")
		become(errors.New("not read"), forbidden)
		check.Fault(t, "not read", others[0].Check(nil), "a gate that fails before anybody looks")
		time.Sleep(Pace)
		synctest.Wait()
		line, ok := (&answer.Status{Checks: n.List()}).Served()
		check.Same(t, "This replica takes no requests: gate: not read; seen: forbidden", line, "what comes first")
		check.Same(t, false, ok, "served")
		scrape("a gate fails, too", "0", "0", "0", "0")
		become(nil, answer.Check{Status: Failed, Message: "a full disk"})
		time.Sleep(Pace)
		synctest.Wait()
		line, _ = (&answer.Status{Checks: n.List()}).Served()
		check.Same(t, "Users are served, but seen: a full disk", line, "users do not notice it")
		scrape("users do not notice it", "1", "0", "1", "1")
		become(nil, answer.Check{})
		beside.Store(&answer.Check{Status: Failed, Message: "one of two"})
		time.Sleep(Pace)
		synctest.Wait()
		scrape("what has a gate fails", "0", "1", "1", "1")
		shown = gates[0].Check(nil) == nil && others[0].Check(nil) != nil && others[1].Check(nil) == nil
		check.Same(t, true, shown, "what has a gate fails without ending readiness")
	})
}

// server answers SelfSubjectAccessReviews.
type server struct {
	mu     sync.Mutex // guards denied and asked
	denied func(*authorizationv1.ResourceAttributes) bool
	err    error
	why    string // the reviews are undecided. Empty means that they are not
	asked  int
	rules  []authorizationv1.ResourceRule // of SelfSubjectRulesReviews, or unruly
	unruly error
}

func (s *server) rights(needed ...rights.Right) *Rights {
	c := fake.NewClientset()
	c.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++
		review, _ := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		review = review.DeepCopy()
		review.Status.EvaluationError = s.why
		review.Status.Allowed = s.why == "" && (s.denied == nil || !s.denied(review.Spec.ResourceAttributes))
		return true, review, s.err
	})
	c.PrependReactor("create", "selfsubjectrulesreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{ResourceRules: s.rules}}, s.unruly
	})
	return NewRights(c.AuthorizationV1(), func() []rights.Right { return needed })
}

func (s *server) deny(what func(*authorizationv1.ResourceAttributes) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = what
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// A right that is taken away and given back is noticed within a minute, and within seconds.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := s.rights(rights.Needed(rights.Shipped())...)
		check.Same(t, Unknown, r.Of("").Status, "before it was asked")
		defer must.Run(t, r.Run)()
		synctest.Wait()
		check.Same(t, "", r.Of("").Status, "with all rights")
		s.deny(func(a *authorizationv1.ResourceAttributes) bool {
			return a.Verb == "list" || a.Resource == "subjectaccessreviews"
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		want := answer.Check{
			Status: Failed,
			Message: "Fairlead may not create subjectaccessreviews.authorization.k8s.io (deploy/base/rbac.yaml:15); " +
				"list apiservices.apiregistration.k8s.io (deploy/base/rbac.yaml:8); list services (deploy/base/rbac.yaml:9) and 3 more",
			Users: "Users without system:masters get 503 from extension servers and for discovery",
			Advice: "without it users without system:masters get 503 from extension servers and for discovery: apply your kustomization with deploy/base/rbac.yaml again, " +
				"and bind ClusterRole system:fairlead to Fairlead's account",
			Command: "kubectl describe clusterrole system:fairlead",
		}
		check.Same(t, want, r.Of(""), "what is missing")
		check.Same(t, "Fairlead may not list configmaps extension-apiserver-authentication in namespace kube-system (deploy/base/rbac.yaml:26)",
			r.Of("extension-apiserver-authentication").Message, "the ConfigMap's")
		s.deny(nil)
		time.Sleep(rightsAgain)
		synctest.Wait()
		check.Same(t, "", r.Of("").Status, "given back")
		before := s.count()
		time.Sleep(10 * time.Minute)
		rounds := (s.count() - before) / len(rights.Needed(rights.Shipped()))
		check.Same(t, true, rounds >= 9 && rounds <= 12, "asked %d times in ten minutes, want about 11", rounds)
	})
}

// A credential that is rejected says nothing about rights, and other faults nothing about it.
func TestCredential(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		err                     error
		why, rights, credential string
	}{
		{"accepted", nil, "", "", ""},
		{"rejected", apierrors.NewUnauthorized("Unauthorized"), "", Unknown, Failed},
		{"unreachable", errors.New("connection refused"), "", Unknown, Unknown},
		{"undecided", nil, "the webhook is down", Unknown, Unknown},
	} {
		s := &server{err: tt.err, why: tt.why}
		r := s.rights(rights.Needed(rights.Shipped())...)
		r.last.Store(r.ask(t.Context()))
		check.Same(t, tt.rights, r.Of("").Status, "%s: rights", tt.name)
		check.Same(t, tt.credential, r.Credential().Status, "%s: credential", tt.name)
		check.Same(t, tt.credential == Failed, strings.Contains(r.Credential().Advice, "restart the pod"), "%s: advice for a pod", tt.name)
	}
}

// Operators may grant impersonation for some names only, and leave out what they do not use; but
// without any right to impersonate users it is none.
func TestNarrow(t *testing.T) {
	const extra, core, rest = "userextras/authentication.kubernetes.io/credential-id", "", "authentication.k8s.io"
	rule := func(group string, resources ...string) authorizationv1.ResourceRule {
		return authorizationv1.ResourceRule{Verbs: []string{"impersonate"}, APIGroups: []string{group}, Resources: resources, ResourceNames: []string{"jane"}}
	}
	const users = "Users with certificates, or tokens that Fairlead verifies, get 403"
	for _, tt := range []struct {
		name            string
		rules           []authorizationv1.ResourceRule
		err             error
		status, message string
	}{
		{"all for some names", []authorizationv1.ResourceRule{rule(core, "users", "groups", "serviceaccounts"), rule(rest, "*")}, nil, "", "may not impersonate "},
		{"only what every user needs", []authorizationv1.ResourceRule{rule(core, "users", "groups"), rule(rest, extra)}, nil, "", "may not impersonate "},
		{"none", []authorizationv1.ResourceRule{{Verbs: []string{"list"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}, nil, Failed, "Fairlead may not impersonate users (deploy/overlays/managed/rbac.yaml:8); impersonate groups (deploy/overlays/managed/rbac.yaml:8); impersonate " + extra},
		{"no group", []authorizationv1.ResourceRule{rule(core, "users"), rule(rest, extra)}, nil, Failed, "Fairlead may not impersonate groups (deploy/overlays/managed/rbac.yaml:8)"},
		{"no certificate", []authorizationv1.ResourceRule{rule(core, "*"), rule(rest, "uids")}, nil, Failed, "Fairlead may not impersonate " + extra + ".authentication.k8s.io (deploy/overlays/managed/rbac.yaml:14)"},
		{"unknown", nil, errors.New("refused"), Unknown, "asking the local apiserver for its rules: refused"},
	} {
		s := &server{denied: func(a *authorizationv1.ResourceAttributes) bool { return a.Verb == "impersonate" }, rules: tt.rules, unruly: tt.err}
		r := s.rights(rights.Needed(rights.Features{Impersonation: true})...)
		r.last.Store(r.ask(t.Context()))
		c := r.Of("")
		check.Same(t, tt.status, c.Status, "%s: status", tt.name)
		check.Has(t, c.Message, tt.message)
		check.Same(t, map[bool]string{true: users}[tt.status == Failed], c.Users, "%s: what users notice", tt.name)
	}
}

// The last outcome counts. A fault is forgotten after a minute if something like it succeeded since.
func TestOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, fault := &Outcome{}, errors.New("forbidden")
		check.Fault(t, "", o.Err(time.Time{}), "none was seen")
		o.Note(fault)
		like := time.Now().Add(time.Second)
		time.Sleep(fresh)
		check.Same(t, true, o.Err(like) != nil, "a minute later")
		time.Sleep(time.Nanosecond)
		check.Same(t, true, o.Err(time.Time{}) != nil, "later, and nothing like it succeeded")
		check.Same(t, false, o.Err(like) != nil, "later, and something like it succeeded")
		o.Note(fault)
		check.Same(t, true, o.Err(like) != nil, "again")
		o.Note(nil)
		check.Same(t, false, o.Err(time.Time{}) != nil, "the next one succeeds")
	})
}

// roundTripper answers with a Date, after some time, or fails.
type roundTripper func() (date time.Time, err error)

func (f roundTripper) RoundTrip(*http.Request) (*http.Response, error) {
	date, err := f()
	if err != nil {
		return nil, err
	}
	return &http.Response{Body: http.NoBody, Header: http.Header{"Date": {date.UTC().Format(http.TimeFormat)}}}, nil
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(999 * time.Millisecond) // Date has no fractions
		for _, tt := range []struct {
			name string
			by   time.Duration // the local apiserver's clock is ahead
			took time.Duration
			err  error
			want string
		}{
			{"equal", 0, 0, nil, ""},
			{"equal, a slow answer", 0, time.Minute, nil, ""},
			{"a little behind", -30 * time.Second, 0, nil, ""},
			{"behind", 24 * time.Hour, 0, nil, "this machine's clock is 23h59m59s behind the local apiserver's"},
			{"ahead", -time.Hour, 0, nil, "this machine's clock is 59m59s ahead of the local apiserver's"},
			{"expired", 0, 0, x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time is before"}, "the local apiserver's certificate is not valid at this machine's time: x509: certificate has expired or is not yet valid: current time is before"},
			{"equal again", 0, 0, nil, ""},
		} {
			c := &Clock{}
			trip := c.Wrap(roundTripper(func() (time.Time, error) {
				time.Sleep(tt.took)
				return time.Now().Add(tt.by), tt.err
			}))
			if res, err := trip.RoundTrip(&http.Request{}); err == nil {
				_ = res.Body.Close()
			}
			check.Same(t, tt.want, c.Look(time.Now()).Message, "%s", tt.name)
			check.Same(t, tt.want != "", c.Look(time.Now()).Status == Failed, "%s: failed", tt.name)
			check.Same(t, tt.err != nil, strings.HasPrefix(c.Look(time.Now()).Advice, "renew that certificate"), "%s: advice", tt.name)
		}
	})
}
