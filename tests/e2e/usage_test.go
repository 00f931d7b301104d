//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// testUsage runs the program with missing or unknown flags: it exits at once with code 2, and
// prints one line per error.
func testUsage(t *testing.T, fairlead string) {
	for _, tc := range []struct {
		name string
		args []string
		want []string // what each line contains
	}{
		{"nothing", []string{"serve", "--bind-address=127.0.0.1"}, []string{"--tls-cert-file is required", "--tls-private-key-file is required", "--proxy-client-cert-file is required", "--proxy-client-key-file is required"}},
		{"a folder that must be given", []string{"serve", "--registry=dir:"}, []string{"names no directory"}},
		{"a flag that does not exist", []string{"serve", "--no-such-flag"}, []string{"--no-such-flag"}},
		{"a flag that is gone", []string{"serve", "--h2-lane=frame"}, []string{"--h2-lane"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			cmd := exec.CommandContext(t.Context(), fairlead, tc.args...)
			cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, []string{"HOME=" + t.TempDir()}
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Fatalf("%v, want exit code 2\n%s%s", err, &out, &errs)
			}
			for _, want := range tc.want {
				lines := 0
				for line := range strings.Lines(errs.String()) {
					if strings.Contains(line, want) {
						lines++
					}
				}
				if lines != 1 {
					t.Errorf("%d lines contain %s, want one\n%s", lines, want, &errs)
				}
			}
		})
	}
}
