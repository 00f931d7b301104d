package tools

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
			check.Same(t, true, bytes.Contains(pins.sum, []byte(p.from+" "+version+" h1:")), "%s/go.sum does not hold %s %s", p.module, p.from, version)
			flags := p.ldflags(pins)
			check.Same(t, true, !p.stamped || strings.Contains(flags, "k8s.io/component-base/version.gitVersion="+version), "version not stamped: %s", flags)
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

// What Fairlead links, too, is compiled once only if nothing that determines its bytes differs.
func TestPartsShareWithFairlead(t *testing.T) {
	_, flags, _ := strings.Cut(string(must.Get(os.ReadFile("../../Makefile"))(t)), "\nGOBUILD := CGO_ENABLED=0 go ")
	flags, _, _ = strings.Cut(flags, " '")
	check.Has(t, flags, "build -")
	for _, p := range parts() {
		check.Has(t, strings.Replace(strings.Join(p.arguments(pins{}, ""), " "), "test -c", "build", 1), flags)
	}
}

// A module's version is in the key of what go build caches, even where a replacement gives all versions the same files.
func TestKubernetesSharesWithFairlead(t *testing.T) {
	pinned, fairlead := readPins("kubernetes"), readPins("../..")
	for line := range strings.Lines(string(fairlead.mod)) {
		module, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if version := pinned.version(module); version != "" {
			check.Same(t, fairlead.version(module), version, "version of %s", module)
		}
	}
}

// builder builds a part, until somebody says that he waits for it.
type builder struct {
	file string
	lock *os.File
	told string
}

func (b *builder) Write(text []byte) (int, error) {
	b.told += string(text)
	return len(text), errors.Join(os.WriteFile(b.file, nil, 0o600), b.lock.Close())
}

func TestSecondWaits(t *testing.T) {
	t.Setenv("FAIRLEAD_TOOLS", t.TempDir())
	first := builder{file: filepath.Join(os.Getenv("FAIRLEAD_TOOLS"), readPins("etcd").key(parts()[0]), "etcd")}
	must.Do(t, os.Mkdir(filepath.Dir(first.file), 0o700))
	first.lock = must.Get(os.Create(first.file + ".lock"))(t)
	must.Do(t, syscall.Flock(int(first.lock.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file := must.Get(Path(ctx, Config{Progress: &first}, "etcd"))(t)
	check.Same(t, first.file, file, "the part")
	check.Same(t, "tools: waiting for another build of etcd\n", first.told, "progress")
}

func TestNoSuchRelease(t *testing.T) {
	t.Setenv("FAIRLEAD_KUBERNETES", "v1.0.999")
	t.Setenv("GOPROXY", "off")
	_, err := Path(t.Context(), Config{}, "kube-apiserver")
	check.Fault(t, "v1.0.999: exit status 1: k8s.io/kubernetes@v1.0.999: module lookup disabled", err, "Path")
}

func TestKeyFollowsPins(t *testing.T) {
	etcd, api := parts()[0], parts()[1]
	a := pins{mod: []byte("a"), sum: []byte("b")}
	check.Same(t, a.key(etcd), pins{mod: []byte("a"), sum: []byte("b"), dir: "elsewhere"}.key(etcd), "another clone's key")
	for name, other := range map[string]string{
		"another go.mod":      pins{mod: []byte("c"), sum: []byte("b")}.key(etcd),
		"another go.sum":      pins{mod: []byte("a"), sum: []byte("c")}.key(etcd),
		"bytes moved between": pins{mod: []byte("ab")}.key(etcd),
		"other flags":         a.key(api),
		"another package":     a.key(part{module: etcd.module, pkg: "example.com/other"}),
	} {
		check.Same(t, true, other != a.key(etcd), "%s: same key", name)
	}
}
