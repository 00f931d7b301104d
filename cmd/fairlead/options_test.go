package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testdata/flags.txt has command lines, beside the pairs that are always required, and faults.
func TestValidate(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "file"), "")
	required := []string{"--tls-cert-file", file, "--tls-private-key-file", file, "--proxy-client-cert-file", file, "--proxy-client-key-file", file}
	faulty := func(name string, args []string, faults ...string) {
		t.Helper()
		o := &options{}
		must.Do(t, flagSet(o).Parse(args))
		err := o.validate()
		if err == nil != (len(faults) == 0) || err != nil && strings.Count(err.Error(), "\n")+1 != len(faults) {
			t.Errorf("%s: want %d faults, got:\n%v", name, len(faults), err)
		}
		check.Has(t, fmt.Sprint(err), faults...)
	}
	faulty("good", required)
	faulty("nothing", nil, "--tls-cert-file is required", "--tls-private-key-file is required", "--proxy-client-cert-file is required", "--proxy-client-key-file is required")
	cases := strings.Split(string(must.Get(os.ReadFile("testdata/flags.txt"))(t)), "\n\n")
	for _, text := range cases[1:] {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		for i := range lines {
			lines[i] = strings.TrimPrefix(strings.ReplaceAll(lines[i], "FILE", file), "=> ")
		}
		faulty(lines[0], append(required, strings.Fields(lines[1])...), lines[2:]...)
	}
}

// Requests under way may end as late as the flags let them, and as late as kube-apiserver lets those to the local one.
func TestDrainWaitsForRequests(t *testing.T) {
	for _, tt := range []struct{ requests, watches, want time.Duration }{
		{10 * time.Second, 0, time.Minute}, {0, 0, time.Minute}, {2 * time.Minute, 0, 2 * time.Minute}, {10 * time.Second, time.Minute, 61 * time.Second},
	} {
		o := &options{requestTimeout: tt.requests, watchGrace: tt.watches}
		check.Same(t, tt.want, o.drainLimit(), "the longest drain, with requests of %s and watches of %s", tt.requests, tt.watches)
	}
}

// A mistake in the command line is a usage error, which exits with 2 before anything listens.
func TestUsageErrors(t *testing.T) {
	cmd := root()
	for _, args := range [][]string{{"serve", "--secure-port", "0"}, {"serve", "--no-such-flag"}, {"serve", "extra"}} {
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		check.Same(t, true, cli.IsUsage(err), "%v: %T: %v", args, err, err)
	}
}

// Each flag of serve says what it does, in sentences. None is one that only lint has (TestLintFlags there).
func TestFlagTexts(t *testing.T) {
	sentences := regexp.MustCompile(`^[A-Z].*\.$`)
	flagSet(new(options)).VisitAll(func(f *pflag.Flag) {
		check.Same(t, true, sentences.MatchString(f.Usage) && !slices.Contains([]string{"account", "namespace", "output", "serving-names"}, f.Name), "--%s: %s", f.Name, f.Usage)
	})
}
