// Package rules has what is told of the policy's rules. Its functions are safe for concurrent use.
package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Rule is a rule, and what it did with requests to this process.
type Rule struct {
	// Name and the others are as in the policy, at Where, file:line. Refused and Passed count.
	Name    string        `json:"name"`
	Where   string        `json:"where"`
	Action  policy.Action `json:"action"`
	Limit   string        `json:"limit,omitempty"`
	Message string        `json:"message,omitempty"`
	DryRun  bool          `json:"dryRun,omitempty"`
	Refused uint64        `json:"refused"`
	Passed  uint64        `json:"passed"`
}

// Of describes rules. Nil are none.
func Of(gates ...*policy.Gate) (all []*Rule) {
	for _, g := range gates {
		if g != nil {
			refused, passed := g.Count()
			all = append(all, &Rule{g.Name, g.Where, g.Action, g.Limit(), g.Message, g.DryRun, refused, passed})
		}
	}
	return all
}

// String returns it in a line.
func (r *Rule) String() string {
	does := []string{string(r.Action), map[bool]string{true: "dry run"}[r.DryRun], r.Limit, r.Message}
	does = slices.DeleteFunc(does, func(s string) bool { return s == "" })
	refused := map[bool]string{true: "would be refused", false: "refused"}[r.DryRun]
	return fmt.Sprintf("%s (%s), %d %s, %d passed: %s",
		r.Name, r.Where, r.Refused, refused, r.Passed, strings.Join(does, ", "))
}
