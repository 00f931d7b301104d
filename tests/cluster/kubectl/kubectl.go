//go:build e2e

// Package kubectl runs kubectl against real servers. Every function ends or fails the test if the
// command does not do what is expected.
package kubectl

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// User runs kubectl as one user.
type User struct {
	Kubeconfig string   // its file
	Cache      string   // the folder of what it keeps of discovery
	Env        []string // added to its environment. Nil: nothing.

	path string
}

// As returns kubectl for a user of an endpoint, with an empty cache.
func As(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) User {
	t.Helper()
	dir := t.TempDir()
	k := User{path: suite.Tool(t, "kubectl"), Kubeconfig: filepath.Join(dir, "kubeconfig"), Cache: filepath.Join(dir, "cache")}
	must.Do(t, e.WriteKubeconfig(k.Kubeconfig, cr))
	return k
}

// Command returns a command that ends with ctx.
func (u User) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, u.path, append([]string{"--kubeconfig", u.Kubeconfig, "--cache-dir", u.Cache}, args...)...)
	cmd.Env = append(os.Environ(), u.Env...)
	return cmd
}

// Try runs kubectl with stdin.
func (u User) Try(t *testing.T, stdin string, args ...string) suite.Answer {
	t.Helper()
	// 5 min: no command takes a second, except deletions that wait for controllers, which may just have begun.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	return suite.Run(t, u.Command(ctx, args...), stdin)
}

// Run runs kubectl, which must succeed, and returns its standard output.
func (u User) Run(t *testing.T, args ...string) string {
	t.Helper()
	return u.Feed(t, "", args...)
}

// Feed is Run with a standard input.
func (u User) Feed(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	a := u.Try(t, stdin, args...)
	must.Be(t, a.Code == 0, "kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), a.Code, a.Out, a.Errs)
	return a.Out
}

// Fail runs kubectl, which must fail with want in its standard error.
func (u User) Fail(t *testing.T, want, stdin string, args ...string) {
	t.Helper()
	a := u.Try(t, stdin, args...)
	if a.Code == 0 || !strings.Contains(a.Errs, want) {
		t.Errorf("kubectl %s: exit code %d, want a failure with %q\n%s%s", strings.Join(args, " "), a.Code, want, a.Out, a.Errs)
	}
}

// Says runs kubectl with arguments divided by blanks. It must exit with the code, and print all of want.
func (u User) Says(t *testing.T, code int, stdin, args string, want ...string) {
	t.Helper()
	a := u.Try(t, stdin, strings.Fields(args)...)
	check.Same(t, code, a.Code, "exit code of kubectl %s\n%s%s", args, a.Out, a.Errs)
	for _, text := range want {
		check.Same(t, true, strings.Contains(a.Out+a.Errs, text), "kubectl %s prints %q:\n%s%s", args, text, a.Out, a.Errs)
	}
}

// Soon runs kubectl until it succeeds, because authorizers learn of changes by a watch and Fairlead
// caches refusals for 10 s, and returns its standard output.
func (u User) Soon(t *testing.T, what string, args ...string) string {
	t.Helper()
	var a suite.Answer
	suite.Eventually(t, 2*time.Minute, what, func() (bool, string) {
		a = u.Try(t, "", args...)
		return a.Code == 0, a.Errs
	})
	return a.Out
}

// Watch runs kubectl get --watch until the test ends. sees waits for an event whose line begins with these words.
func (u User) Watch(t *testing.T, args ...string) (sees func(words ...string)) {
	t.Helper()
	seen := &logbook.Book{}
	cmd := u.Command(t.Context(), append([]string{"get", "--watch", "--output-watch-events"}, args...)...)
	cmd.Stdout = seen
	must.Do(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // killed
	return func(words ...string) {
		t.Helper()
		suite.Eventually(t, time.Minute, strings.Join(words, " "), func() (bool, string) {
			return slices.ContainsFunc(strings.Split(seen.String(), "\n"), func(line string) bool {
				fields := strings.Fields(line)
				return slices.Equal(fields[:min(len(words), len(fields))], words)
			}), seen.String()
		})
	}
}
