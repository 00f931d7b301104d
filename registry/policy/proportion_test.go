package policy

import (
	"fmt"
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// However many groups a request claims, and however many of them rules name, finding its rule costs in proportion.
func TestInProportion(t *testing.T) {
	groups := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("group-%d", i))
		}
		return names
	}
	var rows []proportion.Row
	for name, of := range map[string]func(n int) (ruled, claimed []string){
		"one group again and again": func(n int) (ruled, claimed []string) { return groups(1), slices.Repeat(groups(1), n) },
		"groups that rules name":    func(n int) (ruled, claimed []string) { return groups(n), groups(n) },
	} {
		rows = append(rows, proportion.Row{Name: name, N: 300, Of: func(n int) (int, func() any) {
			var rules []*AccessRule
			ruled, claimed := of(n)
			for i, group := range ruled {
				r := &AccessRule{Name: fmt.Sprintf("r%d", i), Action: Deny}
				r.Match.Subjects = []flowcontrolv1.Subject{{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: group}}}
				r.Match.ResourceRules = []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"list"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}}}
				rules = append(rules, r)
			}
			g := compiled(t, rules...)
			q := &Request{IsResource: true, Verb: "get", Resource: "pods", Namespace: "n", User: &user.DefaultInfo{Name: "u", Groups: claimed}}
			return 20 * n, func() any { g.Find(q); return nil }
		}})
	}
	proportion.Check(t, rows...)
}
