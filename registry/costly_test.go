package registry

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

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
		if len(text) > room {
			t.Fatalf("%s: %d bytes", name, len(text))
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		objects, faults := directory.Decode("f", []byte(text))
		compiled, wrong := new(Options).compile(objects, new(policy.Namespaces), nil)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20; kept > 100 {
			t.Errorf("%s: %d MB are kept", name, kept)
		}
		if got := len(compiled.rules.All()) > 0; got != tc.rules || len(wrong) > 0 {
			t.Errorf("%s: compiled %v: %v %v", name, got, faults, wrong)
		}
		runtime.KeepAlive(compiled)
		runtime.KeepAlive(objects)
	}
}
