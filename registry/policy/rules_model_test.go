package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// town is a small world for rules: its names are often prefixes of each other, so that what nearly matches is common.
type town struct{ *rand.Rand }

func (w town) of(from ...string) string { return from[w.IntN(len(from))] }

// some returns up to three values, at times only "*".
func (w town) some(from ...string) []string {
	if w.IntN(4) == 0 {
		return []string{"*"}
	}
	var out []string
	for range 1 + w.IntN(3) {
		if v := w.of(from...); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

var (
	townNames = []string{
		"a", "ab", "abc", "b", "system:anonymous", "system:serviceaccount:n:a", "system:serviceaccount:n:ab", "system:serviceaccount:nn:a", "system:serviceaccount:n",
		"system:serviceaccount:", "system:serviceaccount::a", "serviceaccount:n:a",
	}
	townGroups     = []string{"g", "gg", "a", "system:authenticated", "system:unauthenticated", "system:masters"}
	townVerbs      = []string{"get", "list", "watch", "create", "delete", "deletecollection"}
	townAPIGroups  = []string{"", "apps", "app", "policy"}
	townResources  = []string{"pods", "pods/exec", "pods/exe", "nodes", "nodes/proxy", "pod", "namespaces", "namespaces/status"}
	townNamespaces = []string{"n", "nn", "kube-system", "n-n"}
	townPaths      = []string{
		"/", "/a", "/ab", "/a/", "/a/b", "/a//b", "/a//", "/healthz", "/healthzz", "/healthz/a", "//healthz", "/1/2/3/4/5/6/7/8/9/10", "/1/2/3/4/5/6/7/8/9/10/11",
		"/1/2/3/4/5/6/7/8", "/1/2/3/4/5/6/7/8/", "/1/2/3/4/5/6/7/9", townDeep, townDeep + "/", townDeep + "/16", townDeep + "/16/", townDeep + "/16/17", townDeep + "/16/17/18", "/ü", "",
	}
	townDeep    = "/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15"
	townAgents  = []string{"argocd", "argocd-server", "kubectl/v1", "kubectl", "k", "a", ""}
	townSources = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.1.0.1", "192.0.2.7", "2001:db8::1", "2001:db8::2", "2001:db8:1::1", "::1", "::ffff:10.0.0.1"}
	townNets    = []string{
		"10.0.0.1", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.77/24", "10.0.0.0/31", "0.0.0.0/0", "::/0", "2001:db8::/32", "2001:db8::1", "2001:db8::/127", "192.0.2.7/32",
		"::ffff:10.0.0.2", "::ffff:10.0.0.0/104", "::1",
	}
)

func (w town) subjects() (out []flowcontrolv1.Subject) {
	if w.IntN(3) == 0 {
		return nil
	}
	for range 1 + w.IntN(3) {
		switch w.IntN(3) {
		case 0:
			out = append(out, flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: w.of(append(townNames, "*")...)}})
		case 1:
			out = append(out, flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: w.of(append(townGroups, "system:authenticated", "*")...)}})
		default:
			out = append(out, flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: w.of("n", "nn"), Name: w.of("a", "ab", "*")}})
		}
	}
	return out
}

func (w town) rule(name string) *AccessRule {
	r := &AccessRule{Name: name, Action: Action(w.of("Allow", "Deny", "Rate", "InFlight")), DryRun: w.IntN(3) == 0}
	switch r.Action {
	case Rate:
		r.PerSecond, r.Shared = 1, w.IntN(2) == 0
	case InFlight:
		r.Max, r.Shared = 1, w.IntN(2) == 0
	}
	r.Match.Subjects = w.subjects()
	for range w.IntN(3) {
		rr := flowcontrolv1.ResourcePolicyRule{Verbs: w.some(townVerbs...), APIGroups: w.some(townAPIGroups...), Resources: w.some(townResources...), ClusterScope: w.IntN(2) == 0}
		if !rr.ClusterScope || w.IntN(2) == 0 {
			rr.Namespaces = w.some(townNamespaces...)
		}
		r.Match.ResourceRules = append(r.Match.ResourceRules, rr)
	}
	for range max(0, w.IntN(4)-1) {
		nr := flowcontrolv1.NonResourcePolicyRule{Verbs: w.some("get", "delete", "post")}
		for range 1 + w.IntN(3) {
			p := w.of(townPaths...)
			if w.IntN(2) == 0 {
				p = strings.TrimSuffix(p, "/") + "/*"
			}
			if strings.Count(p, "/") > maxDepth || p == "" {
				p = townDeep // no policy may have more
			}
			nr.NonResourceURLs = append(nr.NonResourceURLs, p)
		}
		if w.IntN(5) == 0 {
			nr.NonResourceURLs = []string{"*"}
		}
		r.Match.NonResourceRules = append(r.Match.NonResourceRules, nr)
	}
	if w.IntN(3) == 0 {
		for range 1 + w.IntN(2) {
			r.UserAgents = append(r.UserAgents, w.of("argocd", "argocd*", "argocd-*", "kubectl", "k*", "*", "a"))
		}
	}
	if w.IntN(3) == 0 {
		for range 1 + w.IntN(2) {
			r.Sources = append(r.Sources, w.of(townNets...))
		}
	}
	m := &r.Match
	r.WholeLists = w.IntN(8) == 0 || len(m.Subjects)+len(m.ResourceRules)+len(m.NonResourceRules)+len(r.UserAgents)+len(r.Sources) == 0
	return r
}

func (w town) request() *Request {
	q := &Request{Verb: w.of(townVerbs...), UserAgent: w.of(townAgents...)}
	if w.IntN(20) > 0 {
		q.Source = netip.MustParseAddr(w.of(townSources...)).Unmap()
	}
	if w.IntN(6) > 0 {
		u := &user.DefaultInfo{Name: w.of(townNames...)}
		for range w.IntN(4) {
			u.Groups = append(u.Groups, w.of(townGroups...))
		}
		q.User = u
	}
	if q.IsResource = w.IntN(3) > 0; !q.IsResource {
		q.Path = w.of(townPaths...)
		return q
	}
	q.APIGroup, q.WholeList = w.of(townAPIGroups...), w.IntN(2) == 0
	q.Resource, q.Subresource, _ = strings.Cut(w.of(townResources...), "/")
	q.Namespace = w.of(append(townNamespaces, "", "")...)
	return q
}

// oneOf is how flowcontrol/v1 describes a list: it has the value, or is "*" alone.
func oneOf(list []string, value string) bool {
	for _, v := range list {
		if v == value || v == "*" {
			return true
		}
	}
	return false
}

var likes = make(map[string]*regexp.Regexp)

// like matches by a regular expression.
func like(form, s string) bool {
	if likes[form] == nil {
		likes[form] = regexp.MustCompile(form)
	}
	return likes[form].MatchString(s)
}

// subjectHolds: "user.name: the username that matches, or *", "group.name: the user group that
// matches, or *", "serviceAccount: namespace, and name, or * to match regardless of name".
func subjectHolds(s flowcontrolv1.Subject, u user.Info) bool {
	if s.Kind != "ServiceAccount" && (s.User != nil && s.User.Name == "*" || s.Group != nil && s.Group.Name == "*") {
		return true
	}
	switch {
	case u == nil:
		return false
	case s.Kind == "User":
		return u.GetName() == s.User.Name
	case s.Kind == "Group":
		return slices.Contains(u.GetGroups(), s.Group.Name)
	}
	name := ".*"
	if s.ServiceAccount.Name != "*" {
		name = regexp.QuoteMeta(s.ServiceAccount.Name)
	}
	return like("^system:serviceaccount:"+regexp.QuoteMeta(s.ServiceAccount.Namespace)+":"+name+"$", u.GetName())
}

// ruleHolds is the model of AccessRule: its documentation, and that of flowcontrol/v1, read again.
func ruleHolds(r *AccessRule, q *Request) bool {
	if m := r.Match.Subjects; len(m) > 0 {
		everybody := slices.ContainsFunc(m, func(s flowcontrolv1.Subject) bool { return s.Group != nil && s.Group.Name == "system:authenticated" }) &&
			slices.ContainsFunc(m, func(s flowcontrolv1.Subject) bool { return s.Group != nil && s.Group.Name == "system:unauthenticated" })
		if !everybody && !slices.ContainsFunc(m, func(s flowcontrolv1.Subject) bool { return subjectHolds(s, q.User) }) {
			return false
		}
	}
	if len(r.UserAgents) > 0 {
		var forms []string
		for _, a := range r.UserAgents {
			forms = append(forms, strings.ReplaceAll(regexp.QuoteMeta(a), `\*`, ".*"))
		}
		if q.UserAgent == "" || !like("^("+strings.Join(forms, "|")+")$", q.UserAgent) {
			return false
		}
	}
	if len(r.Sources) > 0 && !slices.ContainsFunc(r.Sources, func(s string) bool {
		ip := net.IP(q.Source.AsSlice())
		_, network, err := net.ParseCIDR(s)
		if err != nil {
			return net.ParseIP(s).Equal(ip)
		}
		return ip != nil && network.Contains(ip)
	}) {
		return false
	}
	if r.WholeLists && !q.WholeList {
		return false
	}
	resources, urls := r.Match.ResourceRules, r.Match.NonResourceRules
	if len(resources) == 0 && len(urls) == 0 {
		return q.IsResource
	}
	for _, rr := range resources {
		what := strings.TrimSuffix(q.Resource+"/"+q.Subresource, "/")
		scope := (q.Namespace == "" || q.Resource == "namespaces") && rr.ClusterScope || q.Namespace != "" && oneOf(rr.Namespaces, q.Namespace)
		if q.IsResource && scope && oneOf(rr.Verbs, q.Verb) && oneOf(rr.APIGroups, q.APIGroup) && oneOf(rr.Resources, what) {
			return true
		}
	}
	for _, nr := range urls {
		for _, u := range nr.NonResourceURLs {
			form := "^" + regexp.QuoteMeta(u) + "$|^" + regexp.QuoteMeta(strings.TrimSuffix(strings.TrimSuffix(u, "*"), "/")) + "/"
			if !q.IsResource && oneOf(nr.Verbs, q.Verb) && (u == "*" || like(form, q.Path)) {
				return true
			}
		}
	}
	return false
}

// A rule by values that no request has would stop nobody, so they are faults. A * is no prefix, as in a FlowSchema.
func TestRulesThatStopNobody(t *testing.T) {
	of := func(verb, group, resource, namespace string) (m flowcontrolv1.PolicyRulesWithSubjects) {
		m.ResourceRules = []flowcontrolv1.ResourcePolicyRule{{
			Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, Namespaces: []string{namespace},
		}}
		return m
	}
	by := func(s flowcontrolv1.Subject) flowcontrolv1.PolicyRulesWithSubjects {
		return flowcontrolv1.PolicyRulesWithSubjects{Subjects: []flowcontrolv1.Subject{s}}
	}
	url := func(verbs ...string) (m flowcontrolv1.PolicyRulesWithSubjects) {
		m.NonResourceRules = []flowcontrolv1.NonResourcePolicyRule{{Verbs: verbs, NonResourceURLs: []string{"/logs/*"}}}
		return m
	}
	account := func(namespace, name string) flowcontrolv1.PolicyRulesWithSubjects {
		return by(flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name}})
	}
	for i, tt := range []struct {
		match flowcontrolv1.PolicyRulesWithSubjects
		fault string // the field. Empty means none
	}{
		{of("*", "*", "*", "*"), ""},
		{of("deletecollection", "", "pods/exec", "team-a"), ""},
		{of("get", "external.metrics.k8s.io", "queueLength", "team-a"), ""},
		{of("impersonate", "", "serviceaccounts", "team-a"), ""},
		{flowcontrolv1.PolicyRulesWithSubjects{Subjects: []flowcontrolv1.Subject{}, ResourceRules: of("*", "*", "*", "*").ResourceRules}, "match.subjects"},
		{account("n", "*"), ""},
		{account("n", "a.b"), ""},
		{of("POST", "*", "*", "*"), "match.resourceRules[0].verbs[0]"},
		{of("exec", "*", "*", "*"), "match.resourceRules[0].verbs[0]"},
		{of("*", "*.example.com", "*", "*"), "match.resourceRules[0].apiGroups[0]"},
		{of("*", "apps/v1", "*", "*"), "match.resourceRules[0].apiGroups[0]"},
		{of("*", "core", "*", "*"), "match.resourceRules[0].apiGroups[0]"},
		{of("*", "*", "pods/*", "*"), "match.resourceRules[0].resources[0]"},
		{of("*", "*", "apps/deployments/scale", "*"), "match.resourceRules[0].resources[0]"},
		{of("*", "*", "*", "team-*"), "match.resourceRules[0].namespaces[0]"},
		{of("*", "*", "*", ""), "match.resourceRules[0].namespaces[0]"}, // or it would stop requests without a namespace
		{url("get"), ""},
		{url("head"), ""},
		{url("get", "list"), ""},
		{url("POST"), "match.nonResourceRules[0].verbs[0]"},
		{url("create"), "match.nonResourceRules[0].verbs[0]"},
		{account("*", "*"), "match.subjects[0]"},
		{account("n", "a-*"), "match.subjects[0]"},
		{by(flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: "team-*"}}), "match.subjects[0]"},
		{by(flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "jane*"}}), "match.subjects[0]"},
	} {
		fault := ""
		for _, e := range NewGates(nil).Add(&AccessRule{Name: "r", Action: Deny, Match: tt.match}, "here", nil, false) {
			fault = e.Field
		}
		check.Same(t, tt.fault, fault, "the fault of rule %d", i)
	}
	limit := AccessRule{Name: "r", Action: InFlight, Max: 1, Match: of("impersonate", "", "users", "team-a")}
	check.Same(t, 1, len(NewGates(nil).Add(&limit, "here", nil, false)), "faults of a limit of a verb that has none")
}

// compiled compiles rules as the registry does.
func compiled(tb testing.TB, rules ...*AccessRule) *Gates {
	tb.Helper()
	g := NewGates(nil)
	for i, r := range rules {
		if errs := g.Add(r, fmt.Sprint("here:", i), field.NewPath("rules").Index(i), false); len(errs) > 0 {
			tb.Fatalf("%v: %+v", errs, r)
		}
	}
	g.Compile()
	return g
}

func nameOf(g *Gate) string {
	if g == nil {
		return "none"
	}
	return g.Name
}

// Whatever the rules and the request, the model finds the same rule, and the same dry run before
// it. The rules are found by each kind of condition.
func TestRulesAgainstModel(t *testing.T) {
	w := town{rand.New(rand.NewPCG(47, 47))}
	outcomes, indexed := make(map[string]int), make(map[dimension]int)
	for round := range 10_000 {
		n := 1 + w.IntN(6)
		if round%100 == 0 {
			n = 200
		}
		var rules []*AccessRule
		for i := range n {
			rules = append(rules, w.rule(fmt.Sprint("r", i)))
		}
		g := compiled(t, rules...)
		by := make(map[dimension]bool)
		finds := func(d dimension, ids ...int32) {
			for _, id := range ids {
				by[d] = by[d] || len(g.found[id]) > 0
			}
		}
		for d, ids := range g.ids {
			finds(dimension(d), slices.Collect(maps.Values(ids))...)
		}
		finds(bySource, slices.Collect(maps.Values(g.nets))...)
		finds(byKind, ofResource, ofPath, ofWholeList, ofNamespace)
		for d, used := range by {
			if used {
				indexed[d]++
			}
		}
		for range 3 {
			q := w.request()
			want, dry := "none", "none"
			for _, r := range rules {
				if !ruleHolds(r, q) {
					continue
				}
				if !r.DryRun {
					want = r.Name
					outcomes[string(r.Action)]++
					break
				}
				if dry == "none" {
					dry = r.Name
				}
			}
			found, foundDry := g.Find(q)
			if got := nameOf(found) + " " + nameOf(foundDry); got != want+" "+dry {
				for _, r := range rules {
					t.Logf("%+v", *r)
				}
				t.Fatalf("round %d: rule and dry run %s, the model says %s %s: %+v, user %+v", round, got, want, dry, q, q.User)
			}
			outcomes[want]++
			outcomes["dry run: "+fmt.Sprint(dry != "none")]++
			outcomes["resource: "+fmt.Sprint(q.IsResource, want != "none")]++
			outcomes["unknown user: "+fmt.Sprint(q.User == nil, want != "none")]++
		}
	}
	for _, of := range []string{
		"none", "r0", "r1", "r2", "r3", "Allow", "Deny", "Rate", "InFlight", "dry run: true", "dry run: false", "resource: true true", "resource: true false", "resource: false true",
		"resource: false false", "unknown user: true true", "unknown user: true false",
	} {
		check.Same(t, true, outcomes[of] >= 50, "%d requests had outcome %q: the rounds say little", outcomes[of], of)
	}
	for by := range dimensions {
		check.Same(t, true, indexed[by] >= 50, "%d policies had rules found by dimension %d: the rounds say little", indexed[by], by)
	}
}

// A source is an address or a network. Clients with IPv4 addresses are matched as such, however a rule writes them.
func TestSources(t *testing.T) {
	for text, in := range map[string]string{
		"10.0.0.1": "10.0.0.1", "10.9.9.9/8": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "::ffff:10.0.0.0/104": "10.0.0.1", "::ffff:0:0/96": "10.0.0.1", "2001:db8::/32": "2001:db8::1",
		"": "", "10.0.0.0/33": "", "10.0.0.0/8 ": "", "10.0.0.0/255.0.0.0": "", "fe80::1%eth0": "", "fe80::%eth0/64": "", "::ffff:0:0/90": "", "10.0.0": "", "10.0.0.0/08": "",
	} {
		p, valid := network(text)
		check.Same(t, true, valid == (in != "") && (!valid || p.Contains(netip.MustParseAddr(in))), "%q is %v, %v", text, p, valid)
	}
}
