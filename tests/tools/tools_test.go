package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestEveryPartIsPinned(t *testing.T) {
	for _, p := range parts() {
		t.Run(p.name, func(t *testing.T) {
			pins := readPins(p.module)
			version := pins.version(p.from)
			if version == "" {
				t.Fatalf("%s/go.mod does not require %s", p.module, p.from)
			}
			if !bytes.Contains(pins.sum, []byte(p.from+" "+version+" h1:")) {
				t.Errorf("%s/go.sum does not hold %s %s", p.module, p.from, version)
			}
			if flags := p.ldflags(pins); p.stamped && !strings.Contains(flags, "k8s.io/component-base/version.gitVersion="+version) {
				t.Errorf("version not stamped: %s", flags)
			}
		})
	}
}

// A client rejects a server whose staging repositories are of another release than the server itself.
func TestStagingFollowsKubernetes(t *testing.T) {
	pins := readPins("kubernetes")
	want := "v0." + strings.TrimPrefix(pins.version("k8s.io/kubernetes"), "v1.")
	for line := range strings.Lines(string(pins.mod)) {
		if module, to, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && to != module+" "+want {
			t.Errorf("%s, want %s", strings.TrimSpace(line), want)
		}
	}
}

func TestOtherReleases(t *testing.T) {
	const own = "module k8s.io/kubernetes\n\nrequire (\n\tk8s.io/api v0.0.0\n\tx.y/z v1.2.3\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
	got := pins{mod: staged([]byte(own), "v1.30.14")}
	if !strings.Contains(string(got.mod), "\tk8s.io/api => k8s.io/api v0.30.14\n") || got.version("k8s.io/kubernetes") != "v1.30.14" || got.version("x.y/z") != "v1.2.3" {
		t.Errorf("%s", got.mod)
	}
	var others []string
	for _, p := range parts() {
		pins := readPins(p.module)
		if p.other("", pins) || p.other(pins.version(p.from), pins) {
			t.Errorf("%s: the pinned release is another one", p.name)
		}
		if p.other("v1.30.14", pins) {
			others = append(others, p.name)
		}
	}
	check.Same(t, []string{"kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "e2e.test"}, others, "parts of other releases")
}

func TestKeyFollowsPins(t *testing.T) {
	etcd, api := parts()[0], parts()[1]
	a := pins{mod: []byte("a"), sum: []byte("b")}
	if again := (pins{mod: []byte("a"), sum: []byte("b"), dir: "elsewhere"}); again.key(etcd) != a.key(etcd) {
		t.Error("another clone has another key")
	}
	for name, other := range map[string]string{
		"another go.mod":      pins{mod: []byte("c"), sum: []byte("b")}.key(etcd),
		"another go.sum":      pins{mod: []byte("a"), sum: []byte("c")}.key(etcd),
		"bytes moved between": pins{mod: []byte("ab")}.key(etcd),
		"other flags":         a.key(api),
	} {
		if other == a.key(etcd) {
			t.Errorf("%s: same key", name)
		}
	}
}

// enter makes a repository whose etcd is a few bytes of Go, so that a test can build it without a
// network, and works in it.
func enter(t *testing.T, source string) {
	t.Helper()
	root := t.TempDir()
	t.Chdir(root)
	t.Setenv("FAIRLEAD_TOOLS", "cache")
	for name, text := range map[string]string{
		"kubernetes/go.mod":   "module k\n",
		"etcd/go.mod":         "module e\n\ngo 1.26.0\n\nrequire go.etcd.io/etcd/server/v3 v3.0.0\n\nreplace go.etcd.io/etcd/server/v3 => ./server\n",
		"etcd/go.sum":         "",
		"etcd/server/go.mod":  "module go.etcd.io/etcd/server/v3\n\ngo 1.26.0\n",
		"etcd/server/main.go": source,
	} {
		file := filepath.Join(root, "tests", "tools", name)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	}
}

func TestBuildsOnce(t *testing.T) {
	var progress logbook.Book
	var all sync.WaitGroup
	enter(t, "package main\n\nfunc main() { print(`ran`) }\n")
	for range 4 {
		all.Go(func() {
			file, err := Path(t.Context(), Config{Progress: &progress}, "etcd")
			if err != nil {
				t.Error(err)
			} else if out, err := exec.CommandContext(t.Context(), file).CombinedOutput(); err != nil || string(out) != "ran" {
				t.Errorf("running it: %q, %v", out, err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(progress.String(), "tools: built etcd"); n != 1 {
		t.Errorf("built %d times, want once:\n%s", n, &progress)
	}
}

func TestBrokenBuildLeavesNothing(t *testing.T) {
	enter(t, "package main\n\nfunc main() { nonsense }\n")
	for range 2 { // twice: the first failure must not leave a file
		_, err := Path(t.Context(), Config{}, "etcd")
		if err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Fatalf("got %v, want the compiler's message", err)
		}
	}
}
