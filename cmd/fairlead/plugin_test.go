package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// asFairlead is the environment variable that makes the test's executable act as fairlead.
const asFairlead = "TEST_AS_FAIRLEAD"

func TestMain(m *testing.M) {
	if os.Getenv(asFairlead) != "" {
		main()
		return
	}
	newLogger(&logged, "text", 0)
	os.Exit(m.Run())
}

// program writes an executable that prints its arguments.
func program(t *testing.T, file string) {
	t.Helper()
	const text = "#!/bin/sh\necho \"arguments: $*\"\nexit 3\n"
	must.Do(t, os.WriteFile(file, []byte(text), 0o700))
}

func TestBecomesPlugin(t *testing.T) {
	dir := t.TempDir()
	program(t, filepath.Join(dir, plugin))
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"flags are the plugin's", []string{"status", "-o", "wide", "--no-such-flag"}, "arguments: status -o wide --no-such-flag\n"},
		{"and so is help", []string{"lint", "--help"}, "arguments: lint --help\n"},
		{"shell completion", []string{"__complete", "explain", "--as", "bob", "v1"}, "arguments: __complete explain --as bob v1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], tt.args...)
			cmd.Env = append(os.Environ(), asFairlead+"=1", "PATH="+dir)
			out, err := cmd.Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 || string(out) != tt.want {
				t.Errorf("%v, printed %q, want exit code 3 and %q", err, out, tt.want)
			}
		})
	}
	t.Run("help of fairlead", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "--help")
		cmd.Env = append(os.Environ(), asFairlead+"=1", "PATH="+dir)
		if out := string(must.Get(cmd.Output())(t)); !strings.Contains(out, "Show the APIServices in order") {
			t.Errorf("does not say what status does: %s", out)
		}
	})
	t.Run("no plugin", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "status")
		cmd.Env = append(os.Environ(), asFairlead+"=1", "PATH="+t.TempDir())
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if message := errs.String(); !ok || exit.ExitCode() != 1 || len(out) > 0 || strings.Count(message, "\n") != 1 ||
			!strings.HasPrefix(message, plugin+", which has this subcommand, is neither next to ") {
			t.Errorf("%v, printed %q and %q", err, out, message)
		}
	})
}

func TestFindPlugin(t *testing.T) {
	beside, elsewhere := t.TempDir(), t.TempDir()
	self := filepath.Join(beside, "fairlead")
	program(t, self)
	t.Setenv("PATH", elsewhere)
	// fairlead used to be its own plugin, installed under this name.
	must.Do(t, os.Symlink(self, filepath.Join(beside, plugin)))
	if path, err := findPlugin(self); err == nil {
		t.Errorf("%s is fairlead itself", path)
	}
	program(t, filepath.Join(elsewhere, plugin))
	if path, err := findPlugin(self); err != nil || path != filepath.Join(elsewhere, plugin) {
		t.Errorf("in PATH: %q, %v", path, err)
	}
	must.Do(t, os.Remove(filepath.Join(beside, plugin)))
	program(t, filepath.Join(beside, plugin))
	if path, err := findPlugin(self); err != nil || path != filepath.Join(beside, plugin) {
		t.Errorf("beside: %q, %v", path, err)
	}
}
