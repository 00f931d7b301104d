package proportion_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// What Fairlead once did, and what is like it, is noticed; what is in proportion is not.
func TestPlanted(t *testing.T) {
	fields := func(n int) (int, []hpack.HeaderField, []string) {
		list, names := make([]hpack.HeaderField, n), make([]string, n)
		for i := range n {
			list[i] = hpack.HeaderField{Name: name(i), Value: "v"}
			names[i] = "t" + name(i)
		}
		return 12 * n, list, names
	}
	for _, tt := range []struct {
		row  proportion.Row
		want string
	}{
		{proportion.Row{Name: "slices.Contains for each field", N: 400, Of: func(n int) (int, func() any) {
			sent, list, names := fields(n)
			return sent, func() any {
				return slices.ContainsFunc(list, func(f hpack.HeaderField) bool { return slices.Contains(names, f.Name) })
			}
		}}, "processor time"},
		{proportion.Row{Name: "+= of strings", N: 400, Of: func(n int) (int, func() any) {
			return 34 * n, func() any {
				all := ""
				for range n {
					all += "; " + strings.Repeat("c", 32)
				}
				return len(all)
			}
		}}, "are allocated"},
		{proportion.Row{Name: "a list for each pair", N: 100, Of: func(n int) (int, func() any) {
			return n, func() any { return make([]byte, n*n) }
		}}, "bytes stay, and"},
		{proportion.Row{Name: "much for each byte", N: 10_000, Of: func(n int) (int, func() any) {
			return n, func() any { return make([]byte, 16*n) }
		}}, "more that were sent"},
		{proportion.Row{Name: "one pass with one set", N: 400, Of: func(n int) (int, func() any) {
			sent, list, names := fields(n)
			return sent, func() any {
				set := make(map[string]bool, len(names))
				for _, name := range names {
					set[name] = true
				}
				return slices.ContainsFunc(list, func(f hpack.HeaderField) bool { return set[f.Name] })
			}
		}}, ""},
	} {
		noticed, faults := false, ""
		for range 3 { // a busy machine may hide a fault once, or make one
			faults = strings.Join(tt.row.Faults(t), "; ")
			if noticed = (faults == "") == (tt.want == "") && strings.Contains(faults, tt.want); noticed {
				break
			}
		}
		check.Same(t, true, noticed, "%s: noticed %q, want %q", tt.row.Name, faults, tt.want)
	}
}

func name(i int) string {
	return "x-" + strings.Repeat(string(rune('a'+i%26)), 6) + string(rune('a'+i/26%26))
}
