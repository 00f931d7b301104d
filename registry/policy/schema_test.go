package policy

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
