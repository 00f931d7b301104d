package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// docs/flags.md is made of the flags.
func TestFlagsDocument(t *testing.T) {
	const file, begin, end = "../../docs/flags.md", "<!-- flags -->\n", "<!-- end of flags -->"
	data := must.Get(os.ReadFile(file))(t)
	before, rest, ok := strings.Cut(string(data), begin)
	have, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("docs/flags.md has no %q or no %q", begin, end)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.SortFlags = false
	new(options).addFlags(fs)
	var b strings.Builder
	b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	fs.VisitAll(func(f *pflag.Flag) {
		def := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			def = "`" + strings.Trim(f.DefValue, "[]") + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, def, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	if *update {
		must.Do(t, os.WriteFile(file, []byte(before+begin+b.String()+end+after), 0o644))
		return
	}
	if have != b.String() {
		t.Errorf("docs/flags.md does not list the flags that there are; go test ./cmd/fairlead -run TestFlagsDocument -update writes:\n%s", b.String())
	}
}
