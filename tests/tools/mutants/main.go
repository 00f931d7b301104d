// Command mutants changes the code in small ways, one at a time, and runs the closest unit tests. A mutant that no test
// notices is alive: either alive.txt lists it with a reason, or a test is missing.
//
// It never changes the tree. All mutants of a package are compiled into one test binary, each
// behind a switch in the environment, so the tests run hundreds of times and the compiler once. A
// test runs only for the mutants that it reaches.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

const listName = "tests/tools/mutants/alive.txt"

func main() {
	w := workshop{made: map[string]int{}, killed: map[string]int{}}
	flag.IntVar(&w.sample, "n", 300, "mutants drawn from all packages together; 0: every one")
	flag.IntVar(&w.seed, "seed", 1, "draws others")
	flag.IntVar(&w.parallel, "parallel", 2, "tests at a time")
	flag.StringVar(&w.at, "at", "", "only what begins so: `file:line`, or a file, or a folder")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "go run ./tests/tools/mutants [flags] [package folder ...], from the root of the repository; no folder: all that decide")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := w.work(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stdout, "FAIL:", err)
		os.Exit(1)
	}
}

type workshop struct {
	sample, seed, parallel int
	at                     string
	dir, tmp               string // dir is for binaries, tmp for tests
	still                  atomic.Int64
	reasons                []string       // lines of the list
	made, killed           map[string]int // by package
	unexplained            []string
}

// closest lists the packages that decide, strip, verify, cache, limit and order. Each has packages
// whose tests run for the mutants that survive its own tests.
func closest() map[string][]string {
	return map[string][]string{
		"certs": {}, "certs/trust": {"certs"}, "cmd/fairlead": {}, "cmd/fairlead/entrypoint": {}, "cmd/fairlead/status": {}, "health": {},
		"proxy": {}, "proxy/accesslog": {"proxy"}, "proxy/audit": {"proxy"}, "proxy/authn": {}, "proxy/authn/tokens": {}, "proxy/authz": {}, "proxy/authz/rbac": {},
		"proxy/backend": {"proxy"}, "internal/bound": {"proxy/authn", "proxy/authz", "proxy/backend"}, "proxy/front": {}, "internal/memo": {"proxy/authn", "proxy/authz"},
		"proxy/h2": {"proxy"}, "internal/budget": {"proxy/h2/engine"}, "proxy/h2/engine": {"proxy/h2"}, "internal/hold": {"proxy/h2", "proxy/front"},
		"internal/spare": {"proxy/h2/engine"}, "proxy/h2/wire": {"proxy/h2/engine", "proxy/h2"},
		"registry": {"registry/documents", "registry/documents/discovery"}, "registry/apiservices": {}, "registry/apiservices/etcd": {"registry/apiservices"},
		"registry/directory": {"registry"}, "registry/directory/manifest": {"registry/directory"}, "registry/documents": {"registry/documents/discovery", "registry/documents/openapi"},
		"registry/documents/discovery": {}, "registry/documents/negotiate": {"registry/documents/discovery"}, "registry/documents/openapi": {},
		"internal/latest": {"registry"}, "internal/notify": {"registry/directory", "certs"}, "internal/reach": {"registry"}, "registry/shadow": {"registry"},
	}
}

func (w *workshop) work(ctx context.Context, folders []string) (err error) {
	defer try.Catch(&err)
	for _, folder := range folders {
		if _, decides := closest()[folder]; !decides {
			return fmt.Errorf("%s: no package that decides: they are in tests/tools/mutants/main.go", folder)
		}
	}
	w.dir = try.Get(os.MkdirTemp("", "mutants"))
	defer os.RemoveAll(w.dir)
	w.tmp = filepath.Join(w.dir, "t")
	try.Do(os.Mkdir(w.tmp, 0o700))
	w.reasons = strings.Split(string(try.Get(os.ReadFile(listName))), "\n")
	go watch(ctx, &w.still)

	var decide []string
	for folder := range closest() {
		decide = append(decide, "./"+folder)
	}
	all := try.Get(load(ctx, try.Get(os.Getwd()), decide...))
	for _, p := range all {
		if len(folders) > 0 && !slices.Contains(folders, p.dir) {
			continue
		}
		if chosen := w.choose(p, all); len(chosen) > 0 {
			try.Do(w.try(ctx, p, chosen))
		}
	}
	return errors.Join(w.sum(), w.stale(all))
}

// choose selects a package's mutants, in proportion to their share of all. The selection depends
// only on the seed and the mutant's own text, so it stays the same when other code changes.
func (w *workshop) choose(p *folder, all []*folder) []*mutant {
	quota, total := len(p.mutants), 0
	for _, f := range all {
		total += len(f.mutants)
	}
	if w.sample > 0 && w.at == "" {
		quota = max(4, (w.sample*len(p.mutants)+total-1)/total) // at least a few of a small package
	}
	drawn := func(m *mutant) string { return fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, w.seed, m.key()))) }
	slices.SortFunc(p.mutants, func(a, b *mutant) int { return cmp.Compare(drawn(a), drawn(b)) })
	var chosen []*mutant
	for _, m := range p.mutants {
		if len(chosen) < quota && strings.HasPrefix(m.place+":", w.at) && p.compiles(m) {
			chosen = append(chosen, m)
		}
	}
	slices.SortFunc(chosen, func(a, b *mutant) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.at, b.at)) })
	return chosen
}

// try runs the package's tests for every mutant, then those of the closest packages for the mutants
// that are still alive.
func (w *workshop) try(ctx context.Context, p *folder, live []*mutant) (err error) {
	defer try.Catch(&err)
	dir := p.dir
	w.made[dir] = len(live)
	files := p.write(live)
	for _, tests := range append([]string{dir}, closest()[dir]...) {
		if len(live) == 0 {
			break
		}
		b := try.Get(w.build(ctx, tests, files))
		killers := make([]string, len(live))
		var g errgroup.Group
		g.SetLimit(w.parallel)
		for i, m := range live {
			g.Go(func() error {
				if killers[i] = w.kill(ctx, b, m.number); killers[i] != "" {
					fmt.Fprintf(os.Stdout, "%s: %s → %s: killed by %s %s\n", m.place, m.code, m.to, tests, killers[i])
				}
				return ctx.Err()
			})
		}
		try.Do(g.Wait())
		var left []*mutant
		for i, m := range live {
			if killers[i] == "" {
				left = append(left, m)
			}
		}
		w.killed[dir] += len(live) - len(left)
		live = left
	}
	for _, m := range live {
		why := w.reason(m)
		if why == "" {
			w.unexplained = append(w.unexplained, m.key())
			why = "ALIVE"
		}
		fmt.Fprintf(os.Stdout, "%s: %s → %s: lives: %s\n", m.place, m.code, m.to, why)
	}
	return nil
}

// reason returns the list's reason for m.
func (w *workshop) reason(m *mutant) string {
	for _, line := range w.reasons {
		if why, ok := strings.CutPrefix(line, m.key()+": "); ok {
			return why
		}
	}
	return ""
}

// stale returns an error for each line of the list without a mutant.
func (w *workshop) stale(all []*folder) error {
	var errs []error
	for _, line := range w.reasons {
		known := line == "" || strings.HasPrefix(line, "#")
		for _, f := range all {
			known = known || slices.ContainsFunc(f.mutants, func(m *mutant) bool { return strings.HasPrefix(line, m.key()+": ") })
		}
		if !known {
			errs = append(errs, fmt.Errorf("%s: there is no such mutant any more: %s", listName, line))
		}
	}
	return errors.Join(errs...)
}

func (w *workshop) sum() error {
	made, killed := 0, 0
	fmt.Fprintln(os.Stdout, "\npackage: made, killed, alive")
	for _, dir := range slices.Sorted(maps.Keys(w.made)) {
		fmt.Fprintf(os.Stdout, "%s: %d, %d, %d\n", dir, w.made[dir], w.killed[dir], w.made[dir]-w.killed[dir])
		made, killed = made+w.made[dir], killed+w.killed[dir]
	}
	fmt.Fprintf(os.Stdout, "all: %d, %d, %d\n", made, killed, made-killed)
	if made == 0 {
		return errors.New("no mutants: -at names no line that one changes")
	}
	if len(w.unexplained) > 0 {
		return fmt.Errorf("%d mutants are alive without a reason in %s:\n%s", len(w.unexplained), listName, strings.Join(w.unexplained, "\n"))
	}
	return nil
}
