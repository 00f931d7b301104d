package registry

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// routed is what a story of a policy has beside its table.
type routed struct {
	namespaces policy.Namespaces
	allowed    atomic.Bool // what the cluster forbids
}

// setPolicy is what policies.take does.
func (s *teller) setPolicy(file string, b *batch) {
	objects, faults := directory.Decode(file, []byte(s.story.File(s, file)))
	b.replaced[kindPolicy], b.policy = true, s.objects.policy
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

// asked compares to whom requests go: words are the entry, what is asked, and the one that is
// expected.
func (s *teller) asked(at string, words []string) {
	s.Helper()
	r := policy.Request{}
	u := &user.DefaultInfo{}
	for _, w := range words[1 : len(words)-1] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "namespace":
			r.Namespace = value
		case "resource":
			r.Resource, r.Subresource, _ = strings.Cut(value, "/")
		case "name":
			r.Name = value
		case "labels":
			r.LabelSelector = value
		case "agent":
			r.UserAgent = value
		case "user":
			u.Name, r.User = value, u
		case "group":
			u.Groups, r.User = append(u.Groups, value), u
		default:
			s.Fatalf("%s: unknown %s", at, w)
		}
	}
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
	if len(faults) != 1 || !strings.Contains(faults[0].Message, "must have at most 1000 items") {
		t.Errorf("faults %v", faults)
	}
}
