// Package tools builds parts, the programs that Fairlead is tested with (kube-apiserver, etcd,
// kubectl, metrics-server, linters …), from Go modules that are pinned in the folders beside it.
// These are separate modules, so that their requirements never affect Fairlead's.
//
// A part is built once for each set of pins, flags and Go release and kept in the user's cache, so
// that all clones and worktrees on a machine share it. Callers may run concurrently, in one process
// or several: a file lock per part makes the second wait for the result of the first.
//
// It is not a package manager: it never downloads binaries and never removes old ones.
package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Config says where progress is reported.
type Config struct {
	// Progress receives a line when a build starts and one when it ends, from several goroutines. Nil discards them.
	Progress io.Writer
}

// Default lists the parts that the tests need, in the order in which a new machine can use them soonest.
func Default() []string {
	return []string{"etcd", "kube-apiserver", "kubectl", "sample-apiserver", "kube-controller-manager", "metrics-server", "helm"}
}

// All lists all parts.
func All() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// Paths calls Path for several parts: two modules at a time, because linking uses one processor, and within a module,
// whose parts share packages, one after the other.
func Paths(ctx context.Context, cfg Config, names ...string) (files []string, err error) {
	modules := map[string][]int{} // indexes of names
	for i, name := range names {
		module := ""
		if k := slices.IndexFunc(parts(), func(p part) bool { return p.name == name }); k >= 0 {
			module = parts()[k].module
		}
		modules[module] = append(modules[module], i)
	}
	files = make([]string, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2)
	for _, of := range slices.SortedFunc(maps.Values(modules), func(a, b []int) int { return cmp.Compare(a[0], b[0]) }) {
		group.Go(func() error {
			for _, i := range of {
				file, err := Path(ctx, cfg, names[i])
				if err != nil {
					return err
				}
				files[i] = file
			}
			return nil
		})
	}
	return files, group.Wait()
}

// Path returns the file of a part, and builds it first if it is not in the cache: the folder $FAIRLEAD_TOOLS, or else
// fairlead/tools in the user's cache folder. It works anywhere inside the repository. $FAIRLEAD_KUBERNETES is another
// release of Kubernetes' own parts that module kubernetes pins.
func Path(ctx context.Context, cfg Config, name string) (file string, err error) {
	defer try.Catch(&err)
	i := slices.IndexFunc(parts(), func(p part) bool { return p.name == name })
	if i < 0 {
		return "", fmt.Errorf("no part is called %q: there are %v", name, All())
	}
	p := parts()[i]
	pins := readPins(filepath.Join(findRoot(), "tests", "tools", p.module))
	cache := os.Getenv("FAIRLEAD_TOOLS")
	if cache == "" {
		cache = filepath.Join(try.Get(os.UserCacheDir()), "fairlead", "tools")
	}
	if release := os.Getenv("FAIRLEAD_KUBERNETES"); p.other(release, pins) {
		pins = at(ctx, release)
	}
	file = filepath.Join(try.Get(filepath.Abs(cache)), pins.key(p), p.name)
	if built(file) {
		return file, nil
	}
	try.Do(os.MkdirAll(filepath.Dir(file), 0o755))
	// The kernel drops the lock when the process ends, in whatever way.
	lock := try.Get(os.OpenFile(file+".lock", os.O_CREATE|os.O_RDWR, 0o644))
	defer lock.Close()
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintf(cmp.Or[io.Writer](cfg.Progress, io.Discard), "tools: waiting for another build of %s\n", name)
	}
	locked := make(chan error, 1)
	go func() { locked <- syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) }() // ends with the holder's build
	select {
	case err := <-locked:
		try.Do(err)
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if !built(file) { // by the previous holder of the lock
		try.Do(build(ctx, cfg, p, pins, file))
	}
	return file, nil
}

func built(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular()
}

// build compiles p beside its final place and renames it, so that a half-written file is never taken for a part.
func build(ctx context.Context, cfg Config, p part, pins pins, file string) error {
	progress := cmp.Or[io.Writer](cfg.Progress, io.Discard)
	begun := time.Now()
	fmt.Fprintf(progress, "tools: building %s %s (about %s on two cores when nothing is cached)\n", p.name, pins.version(p.from), p.cold)

	tmp := file + ".tmp" // no other process uses it: the caller holds the lock
	cmd := exec.CommandContext(ctx, "go", p.arguments(pins, tmp)...)
	mode := "readonly"
	if cmd.Dir = pins.dir; cmd.Dir == "" {
		cmd.Dir, mode = filepath.Dir(file), "mod" // adds the sums of staging repositories
		try.Do(os.WriteFile(filepath.Join(cmd.Dir, "go.mod"), pins.mod, 0o600))
		try.Do(os.WriteFile(filepath.Join(cmd.Dir, "go.sum"), pins.sum, 0o600))
	}
	// Only the pins decide: no workspace, no flags from outside, no C compiler.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod="+mode)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", p.name, err, out)
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	fmt.Fprintf(progress, "tools: built %s in %s\n", p.name, time.Since(begun).Round(time.Second))
	return nil
}

// findRoot walks up from the working directory, which in a test is the package's folder, to the
// nearest folder that contains the pins.
func findRoot() string {
	dir := try.Get(os.Getwd())
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "tests", "tools", "kubernetes", "go.mod")); err == nil {
			return at
		}
		if filepath.Dir(at) == at {
			try.Do(errors.New("finding the pins of the tools: no parent of " + dir + " holds tests/tools"))
		}
	}
}
