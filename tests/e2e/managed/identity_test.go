//go:build e2e

package managed

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

type passport struct {
	name   string
	cred   cluster.Credentials
	header http.Header
	// user, groups and extra are the expected identity; extra is the key of an attribute. Or status
	// and says are the expected refusal.
	user   string
	groups []string
	extra  string
	status int
	says   string
}

// passports has those in which this cluster differs from the one of tests/e2e's lane impersonate.
func passports(t *testing.T, w *world) []passport {
	robot := suite.Token(t, w.core, "managed", "robot")
	proxied := func(name string, groups ...string) http.Header {
		return http.Header{"X-Remote-User": {name}, "X-Remote-Group": groups}
	}
	as := func(name string, groups ...string) http.Header {
		return http.Header{"Impersonate-User": {name}, "Impersonate-Group": groups}
	}
	jwt := func(claims map[string]any) cluster.Credentials {
		return cluster.Credentials{Token: w.tokens.Token(t, claims)}
	}
	const known, credential = "system:authenticated", "authentication.kubernetes.io/credential-id"
	proxy, boss := w.issue(t, w.fronts, "front-proxy-client"), w.issue(t, w.users, "boss")
	nobody := `User \"system:anonymous\" cannot `
	return []passport{
		{name: "certificate", cred: w.issue(t, w.users, "dave", "dev"), user: "dave", groups: []string{"dev", known}, extra: credential},
		{name: "JWT", cred: jwt(map[string]any{"jti": "one"}), user: "oidc:jane", groups: []string{"readers", known}, extra: credential},
		{name: "ServiceAccount token", cred: cluster.Credentials{Token: robot}, user: "system:serviceaccount:managed:robot", groups: []string{"system:serviceaccounts", "system:serviceaccounts:managed", known}, extra: credential},
		{name: "front proxy", cred: proxy, header: proxied("carol", "ops"), user: "carol", groups: []string{"ops", known}},
		{name: "front proxy for who has no group", cred: proxy, header: proxied("lone"), user: "lone", groups: []string{known}},
		{name: "token of the cluster", cred: w.StaticToken("alice"), user: "alice", groups: []string{"dev", "ops", known}},
		{name: "administrator's token of the cluster", cred: w.StaticToken("admin"), user: "admin", groups: []string{"system:masters", known}},
		{name: "who may impersonate", cred: boss, header: as("carol", "dev"), user: "carol", groups: []string{"dev", known}},
		{name: "who may impersonate with a UID", cred: boss, header: http.Header{"Impersonate-User": {"carol"}, "Impersonate-Uid": {"one"}}, user: "carol", groups: []string{known}},
		{name: "who may impersonate a ServiceAccount", cred: boss, header: as("system:serviceaccount:managed:robot"), user: "system:serviceaccount:managed:robot", groups: []string{"system:serviceaccounts", "system:serviceaccounts:managed", known}},
		{name: "nothing", status: 403, says: nobody},
		{name: "nobody who is said to be Fairlead", header: proxied(accountName), status: 403, says: nobody},
		{name: "certificate of the cluster's CA, which is not believed here", cred: w.issue(t, w.PKI.Client, "dave"), status: 401},
		{name: "master by certificate", cred: w.issue(t, w.users, "root", "system:masters"), status: 403, says: `group \"system:masters\" may not be impersonated (--impersonate-refuse-groups)`},
		{name: "master by front proxy", cred: proxy, header: proxied("carol", "system:masters"), status: 403, says: "--impersonate-refuse-groups"},
		{name: "master by impersonation", cred: boss, header: as("carol", "system:masters"), status: 403, says: "--impersonate-refuse-groups"},
		{name: "Fairlead by front proxy", cred: proxy, header: proxied(accountName), status: 403, says: "--impersonate-refuse-users"},
		{name: "who may not impersonate", cred: w.issue(t, w.users, "eve"), header: as("carol"), status: 403, says: `User \"eve\" cannot impersonate`},
	}
}

const caller = "caller-of-managed"

func (w *world) ask(t *testing.T, front *cluster.Front, p passport, method, path, body string) (int, string) {
	t.Helper()
	rc := front.Endpoint.RESTConfig(p.cred)
	rc.Timeout = 30 * time.Second
	c := must.Get(rest.HTTPClientFor(rc))(t) // it presents a certificate whichever CAs the server asks for
	header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {caller}}
	maps.Copy(header, p.header)
	reply := must.Get(ask.Do(t.Context(), c, method, front.Endpoint.URL+path, header, body))(t)
	return reply.Code, reply.Body
}

// mine is a list that only Fairlead's account and administrators may read.
const mine = "/apis/apiregistration.k8s.io/v1/apiservices"

func testIdentity(t *testing.T, w *world) {
	for _, p := range passports(t, w) {
		t.Run(p.name, func(t *testing.T) {
			code, body := w.ask(t, w.front, p, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
			if p.status != 0 {
				check.Same(t, p.status, code, "status: %s", body)
				check.Has(t, body, p.says)
			} else {
				var r authenticationv1.SelfSubjectReview
				must.Do(t, json.Unmarshal([]byte(body), &r))
				got := r.Status.UserInfo
				if code != http.StatusCreated || got.Username != p.user || !slices.Equal(got.Groups, p.groups) || p.extra != "" && len(got.Extra[p.extra]) != 1 {
					t.Errorf("%d %s, want %s of %q with %s", code, body, p.user, p.groups, p.extra)
				}
			}
			want := http.StatusForbidden
			switch {
			case p.status != 0:
				want = p.status
			case p.user == "admin":
				want = http.StatusOK
			}
			code, body = w.ask(t, w.front, p, http.MethodGet, mine, "")
			check.Same(t, want, code, "the list that only Fairlead may read: %.300s", body)
		})
	}
	t.Run("the cluster's record", func(t *testing.T) { testRecord(t, w) })
}

// testRecord reads the audit log: requests with Fairlead's account must impersonate a user.
func testRecord(t *testing.T, w *world) {
	as := map[string]int{}
	all := must.Get(w.Audited())(t)
	for i := range all {
		e := &all[i]
		if e.UserAgent != caller {
			continue
		}
		who := "itself"
		if e.ImpersonatedUser != nil {
			who = e.ImpersonatedUser.Username
		}
		if e.User.Username == accountName && (e.ImpersonatedUser == nil || who == "" || who == "system:anonymous") {
			t.Errorf("a caller's request was sent as Fairlead itself: %+v", e)
		}
		as[e.User.Username+" as "+who]++
	}
	for _, want := range []string{
		accountName + " as dave", accountName + " as oidc:jane", accountName + " as carol", accountName + " as lone", accountName + " as system:serviceaccount:managed:robot",
		"system:serviceaccount:managed:robot as itself", "alice as itself", "system:anonymous as itself",
	} {
		check.Same(t, true, as[want] > 0, "no request by %q: %v", want, as)
	}
}

// testRules finds in the audit log a use of each rule that the overlay adds to the base, and that
// the CronJob's account has. tests/e2e/operate does so for the rules of the base.
func testRules(t *testing.T, w *world) {
	log := must.Get(os.ReadFile(w.front.Part.LogFile()))(t)
	check.Lacks(t, string(log), "forbidden: User")
	all := must.Get(w.Audited())(t)
	for i := range all {
		e := &all[i]
		if e.User.Username == accountName && e.ImpersonatedUser == nil && e.ResponseStatus.Code == 403 {
			t.Errorf("Fairlead sent a forbidden request: %+v", e)
		}
	}
	own := must.Get(w.core.RbacV1().ClusterRoles().Get(t.Context(), "system:fairlead-impersonate", metav1.GetOptions{}))(t)
	renew := must.Get(w.core.RbacV1().Roles("kube-system").Get(t.Context(), "fairlead-renew", metav1.GetOptions{}))(t)
	n := w.needed(t, accountName, own.Rules) + w.needed(t, "system:serviceaccount:kube-system:fairlead-renew", renew.Rules)
	check.Same(t, true, n >= 9, "%d permissions are granted, want at least 9", n)
}

// needed fails for what rules grant an account without need, and returns how much they grant.
func (w *world) needed(t *testing.T, account string, rules []rbacv1.PolicyRule) (n int) {
	t.Helper()
	events := must.Get(w.Audited())(t)
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				n++
				if !slices.ContainsFunc(events, func(e auditv1.Event) bool {
					return e.User.Username == account && needs(&e, verb, resource, rule.ResourceNames)
				}) {
					t.Errorf("nothing needs to %s %s %v", verb, resource, rule.ResourceNames)
				}
			}
		}
	}
	return n
}

// needs reports whether a request needed a permission.
func needs(e *auditv1.Event, verb, resource string, names []string) bool {
	as := e.ImpersonatedUser
	if verb != "impersonate" {
		return as == nil && e.Verb == verb && e.ObjectRef.Resource == resource && e.ResponseStatus.Code < 300 && (len(names) == 0 || slices.Contains(names, e.ObjectRef.Name))
	}
	if as == nil {
		return false
	}
	robot := strings.HasPrefix(as.Username, "system:serviceaccount:")
	switch key, extra := strings.CutPrefix(resource, "userextras/"); {
	case extra:
		return len(as.Extra[key]) > 0
	case resource == "groups":
		return slices.Contains(as.Groups, "dev")
	case resource == "uids":
		return as.UID == "one"
	}
	return robot == (resource == "serviceaccounts")
}
