package registry

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// routed is what a story of a policy has beside its table.
type routed struct {
	namespaces policy.Namespaces
	allowed    atomic.Bool // what the cluster forbids
}

// setPolicy is what policies.take does.
func (s *teller) setPolicy(file string, b *batch) {
	objects, faults := directory.Decode(file, []byte(s.story.File(s, file)))
	s.namespaces.Listed.Store(true)
	b.policy = s.objects.policy
	if len(faults) == 0 {
		var now *routings
		if now, faults = s.options.compile(objects, &s.namespaces, s.objects.policy.rules); len(faults) == 0 {
			b.policy = now
		}
	}
	b.policyFaults = faults
}

func labelsOf(words []string) labels.Set {
	set := labels.Set{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		set[name] = value
	}
	return set
}

// server returns an entry or a further one by its name.
func (t *Table) server(name string) *Entry {
	if at := slices.IndexFunc(t.servers, func(e *Entry) bool { return e.Name == name }); at >= 0 {
		return t.servers[at]
	}
	return nil
}

// asked compares to whom requests go: words are the entry, what is asked, and the one that is expected.
func (s *teller) asked(at string, words []string) {
	s.Helper()
	r := policy.Request{}
	u := &user.DefaultInfo{}
	set := map[string]func(v string){
		"namespace": func(v string) { r.Namespace = v },
		"resource":  func(v string) { r.Resource, r.Subresource, _ = strings.Cut(v, "/") },
		"name":      func(v string) { r.Name = v },
		"labels":    func(v string) { r.LabelSelector = v },
		"agent":     func(v string) { r.UserAgent = v },
		"user":      func(v string) { u.Name, r.User = v, u },
		"group":     func(v string) { u.Groups, r.User = append(u.Groups, v), u },
	}
	story.Set(s, at, words[1:len(words)-1], set)
	check.Same(s, words[len(words)-1], s.table.named(words[0]).For(&r).Name, "%s: the server", at)
}

// The example of docs/policy.md is a valid policy.
func TestDocumentedPolicy(t *testing.T) {
	_, text, _ := strings.Cut(string(must.Get(os.ReadFile("../docs/policy.md"))(t)), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	objects, faults := directory.Decode("docs/policy.md", []byte(text))
	in := Input{Options: &Options{}}
	wrong, unknown := in.SetPolicy(objects)
	check.Same(t, 0, len(faults)+len(wrong), "faults: %v %v", faults, wrong)
	check.Same(t, 3, len(unknown), "APIServices of its routes: %v", unknown)
}

// Each example of docs/rules.md is a valid policy, and does what the page says.
func TestDocumentedRules(t *testing.T) {
	blocks := strings.Split(string(must.Get(os.ReadFile("../docs/rules.md"))(t)), "```yaml\n")[1:]
	found := make(map[string]*policy.Gates) // :: the first rule's name
	for i, text := range blocks {
		text, _, _ = strings.Cut(text, "```")
		objects, faults := directory.Decode(fmt.Sprintf("block %d of docs/rules.md", i+1), []byte(text))
		in := Input{Options: &Options{}}
		wrong, _ := in.SetPolicy(objects)
		if len(faults)+len(wrong) > 0 || in.policy.rules == nil {
			t.Errorf("block %d: %v %v", i+1, faults, wrong)
			continue
		}
		found[in.policy.rules.All()[0].Name] = in.policy.rules
	}
	pods := policy.Request{Verb: "create", Resource: "pods", Namespace: "a", IsResource: true}
	as := func(q policy.Request, verb, resource, name string, groups ...string) policy.Request {
		q.Verb, q.User = verb, &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
		q.Resource, q.Subresource, _ = strings.Cut(resource, "/")
		return q
	}
	far, near := pods, pods
	far.Source, near.Source = netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("10.0.0.9")
	everywhere := pods
	everywhere.Namespace, everywhere.WholeList = "", true
	events := everywhere
	events.APIGroup = "events.k8s.io"
	for _, tt := range []struct {
		first string
		q     policy.Request
		want  string
	}{
		{"break-glass", as(pods, "create", "pods", "jane"), "freeze Deny"},
		{"break-glass", as(pods, "delete", "pods", "jane"), "freeze Deny"},
		{"break-glass", as(pods, "list", "pods", "jane"), ""},
		{"break-glass", as(pods, "create", "pods", "root", user.SystemPrivilegedGroup), "break-glass Allow"},
		{"break-glass", as(pods, "patch", "pods/status", "system:node:a", "system:nodes"), "cluster-itself Allow"},
		{"break-glass", as(pods, "create", "pods", "system:serviceaccount:kube-system:replicaset-controller"), "cluster-itself Allow"},
		{"agents-only-read", as(pods, "list", "pods", "bot", "agents"), ""},
		{"agents-only-read", as(pods, "get", "pods/log", "bot", "agents"), ""},
		{"agents-only-read", as(pods, "get", "pods/exec", "bot", "agents"), "agents-only-read Deny"},
		{"agents-only-read", as(pods, "get", "secrets", "bot", "agents"), "agents-only-read Deny"},
		{"agents-only-read", as(pods, "patch", "deployments", "system:serviceaccount:agents:x"), "agents-only-read Deny"},
		{"agents-only-read", as(pods, "patch", "deployments", "jane"), ""},
		{"runner", as(pods, "list", "pods", "system:serviceaccount:ci:runner"), "runner Rate"},
		{"runner", as(everywhere, "list", "pods", "jane"), "whole-lists Rate"},
		{"runner", as(events, "list", "events", "jane"), "whole-lists Rate"},
		{"runner", as(pods, "list", "pods", "jane"), ""},
		{"masters-here", as(near, "delete", "nodes", "root", user.SystemPrivilegedGroup), "masters-here Allow"},
		{"masters-here", as(far, "get", "nodes", "root", user.SystemPrivilegedGroup), "no-other-masters Deny"},
		{"masters-here", as(far, "get", "nodes", "jane"), ""},
	} {
		got := ""
		if g, _ := found[tt.first].Find(&tt.q); g != nil {
			got = g.Name + " " + string(g.Action)
		}
		check.Same(t, tt.want, got, "%s: %s %s by %s", tt.first, tt.q.Verb, tt.q.Resource, tt.q.User.GetName())
	}
	check.Same(t, 4, len(found), "examples")
}

// What is reported of one policy is the same each time, also where all of it is on one line.
func TestUnknownRoutes(t *testing.T) {
	var routes []string
	for c := 'a'; c <= 'z'; c++ {
		routes = append(routes, fmt.Sprintf(`{"apiService":"v1.%c.io","hidden":true}`, c))
	}
	text := `{"apiVersion":"fairlead.dev/v1","kind":"Policy","metadata":{"name":"a"},"routes":[` + strings.Join(routes, ",") + `]}`
	objects, _ := directory.Decode("policy.json", []byte(text))
	in := Input{Options: &Options{}}
	_, unknown := in.SetPolicy(objects)
	_, again := in.SetPolicy(objects)
	check.Same(t, len(routes), len(unknown), "faults")
	check.Same(t, unknown, again, "faults of the same policy")
}

// Routes are bounded.
func TestManyRoutes(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: fairlead.dev/v1\nkind: Policy\nroutes:\n")
	for i := range maxRoutes + 1 {
		fmt.Fprintf(&b, "- {apiService: v1.g%d.io, hidden: true}\n", i)
	}
	objects, _ := directory.Decode("p.yaml", []byte(b.String()))
	_, faults := (&Options{}).compile(objects, nil, nil)
	check.Same(t, true, len(faults) == 1 && strings.Contains(faults[0].Message, "must have at most 1000 items"), "faults %v", faults)
}

// Whatever a ConfigMap of 1 MiB says, its rules take less than 100 MB: repeated by aliases, as many
// values as there is room for, or as many rules.
func TestCostlyPolicy(t *testing.T) {
	const room = 1 << 20
	values := func(n int, prefix string) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprint(prefix, i))
		}
		return "[" + strings.Join(s, ",") + "]"
	}
	one := func(i int) string {
		return fmt.Sprintf("{verbs: [get], apiGroups: [a], resources: [p], namespaces: [n%d], clusterScope: true},", i)
	}
	repeated := func(n int, rules, alias string) func() string {
		var text strings.Builder
		fmt.Fprintf(&text, "- {name: first, action: Deny, match: {resourceRules: &r [%s]}, userAgents: &a %s}\n", rules, values(100, "agent"))
		for i := range n {
			fmt.Fprintf(&text, "- {name: r%d, action: Deny, %s}\n", i, alias)
		}
		return text.String
	}
	var some strings.Builder
	for i := range 16 {
		some.WriteString(one(i))
	}
	for name, tc := range map[string]struct {
		text  func() string
		rules bool // it is not refused
	}{
		"rules": {func() string {
			var text strings.Builder
			for i := 0; i < 10_000 && text.Len() < room-200; i++ {
				fmt.Fprintf(&text, "- {name: r%d, action: Deny, match: {resourceRules: [%s]}}\n", i, one(i))
			}
			return text.String()
		}, true},
		"values": {func() string {
			var text strings.Builder
			for i := 0; text.Len() < room-2000; i++ {
				fmt.Fprintf(&text, "- {name: r%d, action: Deny, userAgents: %s}\n", i, values(100, fmt.Sprint(i, "-")))
			}
			return text.String()
		}, true},
		"repeated rules":          {repeated(1500, some.String(), "match: {resourceRules: *r}"), true},
		"too many repeated rules": {repeated(9000, some.String(), "match: {resourceRules: *r}"), false},
		"repeated values":         {repeated(3000, one(0), "userAgents: *a"), true},
		"all repeated":            {repeated(9000, some.String(), "match: {resourceRules: *r}, userAgents: *a"), false},
	} {
		text := "apiVersion: fairlead.dev/v1\nkind: Policy\nmetadata: {name: a}\nrules:\n" + tc.text()
		must.Be(t, len(text) <= room, "%s: %d bytes", name, len(text))
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		objects, faults := directory.Decode("f", []byte(text))
		compiled, wrong := new(Options).compile(objects, new(policy.Namespaces), nil)
		runtime.GC()
		runtime.ReadMemStats(&after)
		kept := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20
		check.Same(t, true, kept <= 100, "%s: %d MB are kept", name, kept)
		got := len(compiled.rules.All()) > 0
		check.Same(t, true, got == tc.rules && len(wrong) == 0, "%s: compiled %v: %v %v", name, got, faults, wrong)
		runtime.KeepAlive(compiled)
		runtime.KeepAlive(objects)
	}
}
