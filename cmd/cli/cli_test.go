package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestRoot(t *testing.T) {
	for _, tc := range []struct {
		line string
		want string // in the output, or in the usage error
	}{
		{"", "Available Commands"},
		{"sattus", `unknown command "sattus" for "fairlead"; did you mean status?`},
		{"nothing-like-it", `unknown command "nothing-like-it" for "fairlead"`},
		{"status extra", "see fairlead status --help"},
		{"--no-such-flag", "unknown flag: --no-such-flag: see fairlead --help"},
		{"completion", "Generate the autocompletion script"},
		{"completion bsh", `unknown command "bsh" for "fairlead completion"`},
		{"--version", "fairlead version v1.2.3 (go"},
		{"version", "fairlead v1.2.3 (go"},
		{"version -o json", `"version": "v1.2.3", "goVersion": "go`},
		{"version -o yaml", `--output "yaml" is not json`},
	} {
		var out bytes.Buffer
		cmd := Root("fairlead", "Short", "v1.2.3", &cobra.Command{Use: "status", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
		cmd.SetOut(&out)
		cmd.SetArgs(strings.Fields(tc.line))
		err := cmd.ExecuteContext(t.Context())
		text := out.String()
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, tc.want) || err != nil && !IsUsage(err) {
			t.Errorf("%q: %q (%v), want %q", tc.line, text, err, tc.want)
		}
	}
}

// Help lists the groups in order, in lines that fit a terminal.
func TestFlags(t *testing.T) {
	var groups cliflag.NamedFlagSets
	groups.FlagSet("second").String("b", "", strings.Repeat("a long text ", 30))
	groups.FlagSet("first").String("a", "", "A.")
	cmd := &cobra.Command{Use: "do", Long: "Do it."}
	Flags(cmd, groups)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--help"})
	must.Do(t, cmd.ExecuteContext(t.Context()))
	at := -1
	for _, want := range []string{"Do it.", "Second flags:", "First flags:"} {
		next := strings.Index(out.String(), want)
		check.Same(t, true, next > at, "%q is missing, or in the wrong output:\n%s", want, out.String())
		at = next
	}
	for line := range strings.Lines(out.String()) {
		check.Same(t, true, len(line) <= columns+1, "%d columns: %s", len(line), line)
	}
}

// As in kube-apiserver there may be blanks.
func TestSNI(t *testing.T) {
	s, fs := &Shared{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(func(string) *pflag.FlagSet { return fs })
	const flag = "--tls-sni-cert-key="
	must.Do(t, fs.Parse([]string{flag + "a.crt, a.key: a.test, *.b.test", flag + "a.crt,a.key:fd00::1"}))
	check.Same(t, "[{a.crt a.key [a.test *.b.test]} {a.crt a.key [fd00::1]}]", fmt.Sprint(s.SNI()), "pairs")
	check.Fault(t, "expected comma separated certificate and key file paths", fs.Parse([]string{flag + "a.crt"}), "no key")
}

// An error's text may be a server's.
func TestErrorsAreEscaped(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("asking: 403 \x1b]0;x\x07\nerror: forged"), `asking: 403 \u001b]0;x\u0007 error: forged`},
		{Usage(errors.New("one\ntwo \u202e")), "one\ntwo \\u202e"},
	} {
		check.Same(t, tt.want, text(tt.err), "text")
	}
}
