package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// world is a small one, so that conditions often match: its strings are prefixes of each other.
type world struct{ *rand.Rand }

func (w world) word() string {
	return []string{"a", "ab", "abc", "b", "ba", "pods", "pods/exec"}[w.IntN(7)]
}

func (w world) list() (out []string) {
	if w.IntN(3) > 0 {
		return nil
	}
	for range 1 + w.IntN(3) {
		out = append(out, w.word()+[]string{"", "", "*"}[w.IntN(3)])
	}
	return out
}

// asked is a request as the model knows it: a map of what there is.
func (w world) asked() (map[string][]string, *Request) {
	some := func() string {
		if w.IntN(3) == 0 {
			return ""
		}
		return strings.ReplaceAll(w.word(), "/", "")
	}
	m, r := make(map[string][]string), &Request{Namespace: some(), Resource: some(), Name: some(), UserAgent: some()}
	for name, value := range map[string]string{"namespaces": r.Namespace, "resources": r.Resource, "names": r.Name, "userAgents": r.UserAgent} {
		if value != "" {
			m[name] = []string{value}
		}
	}
	if r.Subresource = some(); r.Resource == "" {
		r.Subresource = ""
	}
	if r.Subresource != "" {
		m["resources"] = append(m["resources"], r.Resource+"/"+r.Subresource)
	}
	if w.IntN(4) > 0 {
		u := &user.DefaultInfo{Name: w.word(), Groups: []string{w.word(), w.word()}}
		r.User, m["users"], m["groups"] = u, []string{u.Name}, u.Groups
	}
	var terms []string
	for range w.IntN(4) {
		key := strings.ReplaceAll(w.word(), "/", "")
		form := w.IntN(7)
		terms = append(terms, fmt.Sprintf([]string{"%s", "%s=x", "%s==x", "%s in (x,y)", "%s!=x", "%s notin (x)", "!%s"}[form], key))
		if form < 4 {
			m["labelKeys"] = append(m["labelKeys"], key)
		}
	}
	r.LabelSelector = strings.Join(terms, ",")
	return m, r
}

// holds is the model: every list of the condition has a value that one of the request's is.
func holds(lists, request map[string][]string) bool {
	for name, values := range lists {
		found := false
		for _, v := range values {
			for _, have := range request[name] {
				if v == have || v[len(v)-1] == '*' && len(have) >= len(v)-1 && have[:len(v)-1] == v[:len(v)-1] {
					found = true
				}
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// Whatever the conditions and the request, the first backend that the model holds for gets it.
func TestAgainstModel(t *testing.T) {
	w := world{rand.New(rand.NewPCG(46, 46))}
	known := new(Namespaces)
	tiers := map[string]string{"a": "gold", "ab": "gold", "abc": "iron"}
	for name, tier := range tiers {
		known.Set(name, labels.Set{"tier": tier})
	}
	chosen := make(map[int]int)
	for round := range 10_000 {
		var rules []*Rule
		var models []map[string][]string
		for range 1 + w.IntN(5) {
			b := &Backend{Standby: w.IntN(6) == 0}
			lists := map[string][]string{}
			if !b.Standby {
				when := &When{Namespaces: w.list(), Resources: w.list(), Names: w.list(), LabelKeys: w.list(), Users: w.list(), Groups: w.list(), UserAgents: w.list()}
				when.lists(func(name string, values []string) {
					if values != nil {
						lists[name] = values
					}
				})
				if w.IntN(8) == 0 {
					when.NamespaceLabels = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
					lists["gold"] = []string{"gold"}
				}
				if len(lists) == 0 {
					when.Users, lists["users"] = []string{"a"}, []string{"a"}
				}
				b.When = when
			} else {
				lists["nothing"] = []string{"matches"}
			}
			r, errs := b.Rule("here", field.NewPath("b"), known)
			must.Be(t, len(errs) == 0, "%v", errs)
			rules, models = append(rules, r), append(models, lists)
		}
		m, q := w.asked()
		m["gold"] = []string{tiers[q.Namespace]}
		first := func(matches func(i int) bool) int {
			for i := range rules {
				if matches(i) {
					return i
				}
			}
			return -1
		}
		got, want := first(func(i int) bool { return rules[i].Fails(q) == "" }), first(func(i int) bool { return holds(models[i], m) })
		must.Be(t, got == want, "round %d: backend %d, the model says %d: conditions %v, request %v %+v", round, got, want, models, m, q)
		chosen[want]++
	}
	for _, i := range []int{-1, 0, 1, 2, 3} {
		check.Same(t, true, chosen[i] >= 50, "backend %d was chosen %d times: the rounds say little", i, chosen[i])
	}
}

// A selector that cannot be parsed requires nothing.
func TestBrokenSelector(t *testing.T) {
	r, _ := (&Backend{When: &When{LabelKeys: []string{"a"}}}).Rule("", field.NewPath("b"), nil)
	for _, text := range []string{"a in", "a=(", "a,,", "=a", "\x00"} {
		check.Same(t, false, r.Fails(&Request{LabelSelector: text}) == "", "%q requires a", text)
	}
}

// described is the part of a JSON schema that is compared.
type described struct {
	Properties map[string]*described `json:"properties"`
	Defs       map[string]*described `json:"$defs"`
	MaxItems   int                   `json:"maxItems"`
	Ref        string                `json:"$ref"`
}

// The shipped schema has the fields that the decoder takes, and no others.
func TestSchema(t *testing.T) {
	var s described
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile("../../deploy/policy.schema.json"))(t), &s))
	service := s.Defs["Backend"].Properties["service"]
	for of, shown := range map[reflect.Type]*described{
		reflect.TypeFor[Policy](): &s, reflect.TypeFor[Route](): s.Defs["Route"], reflect.TypeFor[Backend](): s.Defs["Backend"], reflect.TypeFor[When](): s.Defs["When"],
		reflect.TypeFor[AccessRule](): s.Defs["Rule"], reflect.TypeFor[flowcontrolv1.PolicyRulesWithSubjects](): s.Defs["Match"],
		reflect.TypeFor[apiregistrationv1.ServiceReference](): service,
	} {
		var want, got []string
		for f := range of.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				want = append(want, name)
			} else {
				want = append(want, "apiVersion", "kind") // of the inlined TypeMeta
			}
		}
		for name := range shown.Properties {
			got = append(got, name)
		}
		slices.Sort(want)
		slices.Sort(got)
		check.Same(t, want, got, "fields of %s", of)
	}
	check.Same(t, maxValues, s.Defs["values"].MaxItems, "values of a field")
	check.Same(t, maxRulesOfMatch, s.Defs["Match"].Properties["resourceRules"].MaxItems, "rules of a match")
	lists := 0
	(&When{}).lists(func(field string, _ []string) {
		lists++
		check.Same(t, "#/$defs/values", s.Defs["When"].Properties[field].Ref, "the type of %s", field)
	})
	check.Same(t, len(s.Defs["When"].Properties)-1, lists, "lists, without namespaceLabels")
}
