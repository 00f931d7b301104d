package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// logged is the libraries' log in this package's tests. It is set before anything logs, because
// client-go may log for a while after its test has ended.
var logged logbook.Book

// departed is a client that disconnects after the head.
type departed struct{ *httptest.ResponseRecorder }

func (departed) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A client that disconnects during a list is not logged; the library's other messages are. What earlier tests have left
// behind may log errors of its own.
func TestLogOfClientsThatGo(t *testing.T) {
	d, before := aloneDoor(t), len(logged.String())
	must.Run(t, d.registry.Run)
	must.Run(t, d.apiServices.Run)
	must.Soon(t, 20*time.Second, "the server has read the table", func() bool {
		w := departed{httptest.NewRecorder()}
		d.apiServices.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/apiregistration.k8s.io/v1/apiservices", nil))
		return w.Code == http.StatusOK
	})
	check.Lacks(t, logged.String()[before:], syscall.EPIPE.Error())
	klog.ErrorS(context.DeadlineExceeded, "another one")
	check.Has(t, logged.String()[before:], "another one")
	for _, name := range []string{"registry", "another"} { // what a check says of the registry, its reflectors repeat
		o := cache.ReflectorOptions{Name: name}
		r := cache.NewReflectorWithOptions(&cache.ListWatch{}, &corev1.Service{}, cache.NewStore(cache.MetaNamespaceKeyFunc), o)
		cache.DefaultWatchErrorHandler(t.Context(), r, errors.New(name+" has no server"))
	}
	check.Has(t, logged.String()[before:], "another has no server")
	check.Same(t, false, strings.Contains(logged.String()[before:], "registry has no server"), "a failure of the registry's is repeated")
}

const asFairlead = "TEST_AS_FAIRLEAD" // the environment variable that makes the test's executable act as fairlead

func TestMain(m *testing.M) {
	if os.Getenv(asFairlead) != "" {
		main()
		return
	}
	newLogger(&logged, "text", 0)
	net.DefaultResolver = ownResolver()
	os.Exit(m.Run())
}

// program writes an executable that prints its arguments.
func program(t *testing.T, file string) {
	t.Helper()
	const text = "#!/bin/sh\necho \"arguments: $*\"\nexit 3\n"
	must.Do(t, os.WriteFile(file, []byte(text), 0o700))
}

// Flags, help and shell completion are the plugin's. The help of fairlead itself says what the subcommands do.
func TestBecomesPlugin(t *testing.T) {
	beside := t.TempDir()
	program(t, filepath.Join(beside, plugin))
	for _, tt := range []struct {
		args, path string
		code       int
		out, errs  string // errs: its beginning
	}{
		{"status -o wide --no-such-flag", beside, 3, "arguments: status -o wide --no-such-flag\n", ""},
		{"lint --help", beside, 3, "arguments: lint --help\n", ""},
		{"__complete explain --as bob v1", beside, 3, "arguments: __complete explain --as bob v1\n", ""},
		{"status", t.TempDir(), 1, "", plugin + ", which has this subcommand, is neither next to "},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(tt.args)...)
		cmd.Env = append(os.Environ(), asFairlead+"=1", "PATH="+tt.path)
		out, err := cmd.Output()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != tt.code || string(out) != tt.out || !strings.HasPrefix(string(exit.Stderr), tt.errs) || bytes.Count(append(out, exit.Stderr...), []byte("\n")) != 1 {
			t.Errorf("%s: %v, printed %q, want exit code %d, %q and %q", tt.args, err, out, tt.code, tt.out, tt.errs)
		}
	}
	var help bytes.Buffer
	cmd := root()
	cmd.SetOut(&help)
	cmd.SetArgs([]string{"--help"})
	must.Do(t, cmd.ExecuteContext(t.Context()))
	check.Has(t, help.String(), "Show the APIServices in order")
}

// Who reads the log may end before, which does not end this process.
func TestLogWithoutReader(t *testing.T) {
	r, w := must.Get2(os.Pipe())(t)
	defer w.Close()
	must.Do(t, r.Close())
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve")
	cmd.Env, cmd.Stderr = append(os.Environ(), asFairlead+"=1"), w
	exit, ok := errors.AsType[*exec.ExitError](cmd.Run())
	check.Same(t, true, ok && exit.ExitCode() == 2, "without flags: %v, want exit code 2", exit)
}

func TestFindPlugin(t *testing.T) {
	beside, elsewhere := t.TempDir(), t.TempDir()
	self := filepath.Join(beside, "fairlead")
	program(t, self)
	t.Setenv("PATH", elsewhere)
	// fairlead used to be its own plugin, installed under this name.
	must.Do(t, os.Symlink(self, filepath.Join(beside, plugin)))
	path, err := findPlugin(self)
	check.Same(t, true, err != nil, "%s is fairlead itself", path)
	program(t, filepath.Join(elsewhere, plugin))
	check.Same(t, filepath.Join(elsewhere, plugin), must.Get(findPlugin(self))(t), "in PATH")
	must.Do(t, os.Remove(filepath.Join(beside, plugin)))
	program(t, filepath.Join(beside, plugin))
	check.Same(t, filepath.Join(beside, plugin), must.Get(findPlugin(self))(t), "beside")
}
