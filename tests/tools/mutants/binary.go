package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// binary is a test binary with mutants in its package or in one that it imports.
type binary struct {
	file, dir string
	took      map[string]time.Duration // by test, without mutants
	reached   map[string][]int         // by test: numbers of mutants
}

// build compiles the tests of dir with files in place of those on disk.
func (w *workshop) build(ctx context.Context, dir string, files map[string][]byte) (b *binary, err error) {
	defer try.Catch(&err)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range files {
		at := filepath.Join(w.dir, fmt.Sprintf("%d.go", len(overlay.Replace)))
		try.Do(os.WriteFile(at, text, 0o600))
		overlay.Replace[name] = at
	}
	at := filepath.Join(w.dir, "overlay.json")
	try.Do(os.WriteFile(at, try.Get(json.Marshal(overlay)), 0o600))
	b = &binary{file: filepath.Join(w.dir, "tests"), dir: dir, took: map[string]time.Duration{}, reached: map[string][]int{}}
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", at, "-o", b.file, "./"+dir).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("building tests of %s: %w\n%s", dir, err, out)
	}
	return b, w.trace(ctx, b)
}

// trace runs each test by itself without mutants, and records which mutants it reaches and how long it takes.
func (w *workshop) trace(ctx context.Context, b *binary) error {
	list := w.run(ctx, b, 0, "", time.Minute, "-test.list=^(Test|Fuzz|Example)")
	if list.killer != "" {
		return fmt.Errorf("listing tests of %s: %s", b.dir, list.out)
	}
	var mu sync.Mutex // guards b
	var g errgroup.Group
	g.SetLimit(w.parallel)
	for test := range strings.FieldsSeq(list.out) {
		g.Go(func() error {
			reached := filepath.Join(w.dir, test)
			if err := os.WriteFile(reached, nil, 0o600); err != nil {
				return err
			}
			r := w.run(ctx, b, 0, reached, 10*time.Minute, "-test.run=^"+test+"$")
			if r.killer != "" { // the machine may be busy
				r = w.run(ctx, b, 0, reached, 10*time.Minute, "-test.run=^"+test+"$")
			}
			if r.killer != "" {
				fmt.Fprintf(os.Stdout, "%s: %s fails by itself and is left out:\n%s\n", b.dir, test, r.out)
				return nil
			}
			numbers, err := os.ReadFile(reached)
			mu.Lock()
			defer mu.Unlock()
			b.took[test] = r.took
			for n := range strings.FieldsSeq(string(numbers)) {
				number, _ := strconv.Atoi(n)
				b.reached[test] = append(b.reached[test], number)
			}
			return err
		})
	}
	return g.Wait()
}

// kill runs the tests that reach the mutant, quick ones first, and returns what killed it. Empty
// means that it is alive.
func (w *workshop) kill(ctx context.Context, b *binary, number int) string {
	var quick, slow []string
	for _, test := range slices.Sorted(maps.Keys(b.reached)) {
		switch {
		case !slices.Contains(b.reached[test], number):
		case b.took[test] < time.Second:
			quick = append(quick, test)
		default:
			slow = append(slow, test)
		}
	}
	for _, tests := range [][]string{quick, slow} {
		if killer := w.fail(ctx, b, number, tests); killer != "" {
			return killer
		}
	}
	return ""
}

// fail runs tests, and repeats those that fail: they may fail because the machine is busy.
func (w *workshop) fail(ctx context.Context, b *binary, number int, tests []string) string {
	if len(tests) == 0 {
		return ""
	}
	run := func(tests []string) outcome {
		limit := 10 * time.Second
		for _, test := range tests {
			limit += 3 * b.took[test]
		}
		return w.run(ctx, b, number, "", limit, "-test.failfast", "-test.run=^("+strings.Join(tests, "|")+")$")
	}
	r := run(tests)
	if len(r.failed) > 0 && run(r.failed).killer == "" {
		r = run(tests)
	}
	return r.killer
}

// outcome is the result of a run of tests.
type outcome struct {
	killer string // what failed: a test, "panic" or "time". Empty means nothing
	failed []string
	took   time.Duration
	out    string
}

// run runs b with one mutant on. It repeats a run during which the machine stood still, because
// time limits may have expired meanwhile.
func (w *workshop) run(ctx context.Context, b *binary, number int, reached string, limit time.Duration, args ...string) outcome {
	for {
		still, start := w.still.Load(), time.Now()
		// A mutant may allocate without end: 8 GiB of data is several times what any test needs.
		cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -d 8388608; exec "$@"`, "sh", b.file, "-test.timeout=" + limit.String()}, args...)...)
		cmd.Dir, cmd.WaitDelay = b.dir, 5*time.Second
		cmd.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(number), "MUTANT_REACHED="+reached, "TMPDIR="+w.tmp)
		out, err := cmd.CombinedOutput()
		r := outcome{out: string(out), took: time.Since(start)}
		for _, m := range failure().FindAllStringSubmatch(r.out, -1) {
			r.failed = append(r.failed, m[1])
		}
		var exit *exec.ExitError
		switch {
		case err == nil:
		case strings.Contains(r.out, "panic: test timed out"):
			r.killer, r.failed = "time", nil
		case len(r.failed) > 0:
			r.killer = r.failed[0]
		case errors.As(err, &exit):
			r.killer = "panic"
		default:
			r.killer = err.Error()
		}
		if w.still.Load() == still || ctx.Err() != nil {
			return r
		}
	}
}

func failure() *regexp.Regexp { return regexp.MustCompile(`(?m)^--- FAIL: (\w+)`) }

// watch counts how often the machine, or this process, stood still for seconds: suspended or frozen.
func watch(ctx context.Context, still *atomic.Int64) {
	const step = 100 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for last := time.Now(); ctx.Err() == nil; last = time.Now() {
		<-tick.C
		if time.Since(last) > 20*step {
			still.Add(1)
		}
	}
}
