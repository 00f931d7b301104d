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
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// Config says where parts are kept and progress is reported. The zero value works anywhere inside
// the repository.
type Config struct {
	// Root is the root of the repository. Empty means the nearest parent of the working directory
	// that contains the pins.
	Root string

	// Cache is the folder that keeps the parts. Empty means $FAIRLEAD_TOOLS, or else fairlead/tools
	// in the user's cache folder.
	Cache string

	// Progress receives a line when a build starts and one when it ends. Nil discards them.
	Progress io.Writer

	which string // position among several parts, for Progress
}

// Default lists the parts that the tests need, in the order in which a new machine can use them
// soonest.
func Default() []string { return names(func(p part) bool { return p.byDefault }) }

// All lists all parts.
func All() []string { return names(func(part) bool { return true }) }

func names(want func(part) bool) []string {
	var out []string
	for _, p := range parts() {
		if want(p) {
			out = append(out, p.name)
		}
	}
	return out
}

// Paths calls Path for several parts, one after the other. Progress says which of them is being
// built.
func Paths(ctx context.Context, cfg Config, names ...string) (files []string, err error) {
	for i, name := range names {
		cfg.which = fmt.Sprintf(", part %d of %d", i+1, len(names))
		file, err := Path(ctx, cfg, name)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// Path returns the file of a part, and builds it first if it is not in the cache.
func Path(ctx context.Context, cfg Config, name string) (string, error) {
	i := slices.IndexFunc(parts(), func(p part) bool { return p.name == name })
	if i < 0 {
		return "", fmt.Errorf("no part is called %q: there are %v", name, All())
	}
	p := parts()[i]

	cfg, err := cfg.complete()
	if err != nil {
		return "", err
	}
	pins, err := readPins(filepath.Join(cfg.Root, "tests", "tools", p.module))
	if err != nil {
		return "", err
	}
	file := filepath.Join(cfg.Cache, pins.key(p), p.name)
	if built(file) {
		return file, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", fmt.Errorf("making the tools folder: %w", err)
	}
	unlock, err := lock(ctx, file+".lock")
	if err != nil {
		return "", fmt.Errorf("locking %s: %w", p.name, err)
	}
	defer unlock()
	if built(file) { // by the previous holder of the lock
		return file, nil
	}
	if err := build(ctx, cfg, p, pins, file); err != nil {
		return "", fmt.Errorf("building %s: %w", p.name, err)
	}
	return file, nil
}

func built(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular()
}

// build compiles p beside its final place and renames it, so that a half-written file is never
// taken for a part.
func build(ctx context.Context, cfg Config, p part, pins pins, file string) error {
	begun := time.Now()
	fmt.Fprintf(cfg.Progress, "tools: building %s %s%s (about %s on two cores when nothing is cached)\n", p.name, pins.version(p.from), cfg.which, p.cold)

	tmp := file + ".tmp" // no other process uses it: the caller holds the lock
	cmd := exec.CommandContext(ctx, "go", p.arguments(pins, tmp)...)
	cmd.Dir = pins.dir
	// Only the pins decide: no workspace, no flags from outside, no C compiler.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	fmt.Fprintf(cfg.Progress, "tools: built %s in %s\n", p.name, time.Since(begun).Round(time.Second))
	return nil
}

func (c Config) complete() (Config, error) {
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	if c.Cache == "" {
		c.Cache = os.Getenv("FAIRLEAD_TOOLS")
	}
	if c.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return c, fmt.Errorf("finding a folder for the tools (set FAIRLEAD_TOOLS): %w", err)
		}
		c.Cache = filepath.Join(dir, "fairlead", "tools")
	}
	var err error
	if c.Cache, err = filepath.Abs(c.Cache); err != nil {
		return c, err
	}
	if c.Root == "" {
		c.Root, err = findRoot()
	}
	return c, err
}

// findRoot walks up from the working directory, which in a test is the package's folder.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "tests", "tools", "kubernetes", "go.mod")); err == nil {
			return at, nil
		}
		if filepath.Dir(at) == at {
			return "", errors.New("finding the pins of the tools: no parent of " + dir + " holds tests/tools")
		}
	}
}
