// Command count reads `go test -json` from standard input, prints a line per finished case, the
// whole output of failed ones, and the number of cases. It exits 1 if a case failed or was
// skipped, if none ran, or if fewer ran than expected.
//
// A case is a test or subtest without subtests.
//
// With -times it also appends a line to a file: the suite, its cases, its seconds and its outcome.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.want, "want", "", "`file` that holds the least number of cases; empty: any number will do")
	flag.BoolVar(&o.verbose, "v", false, "print what cases that pass have logged too")
	flag.BoolVar(&o.quiet, "q", false, "of what passes, print packages instead of cases")
	flag.StringVar(&o.suite, "suite", "", "`name` of the suite in -times")
	flag.StringVar(&o.times, "times", "", "`file` that gets a line about the suite; empty: none")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stdout, "FAIL:", err)
		os.Exit(1)
	}
}

type options struct {
	want           string
	verbose, quiet bool // show the logs of passed cases; show packages instead of cases
	suite, times   string
}

// run counts the cases of in and compares their number with that in the file o.want.
func run(in io.Reader, out io.Writer, o options) error {
	begun := time.Now() // go test started at the same time: includes builds
	least := 0
	if o.want != "" {
		text, err := os.ReadFile(o.want)
		if err == nil {
			least, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		if err != nil {
			return fmt.Errorf("reading count: %w", err)
		}
	}
	c := &counter{options: o, out: out, output: map[string][]string{}, cases: map[string]bool{}}
	if err := c.read(in); err != nil {
		return err
	}
	ran := len(c.cases) - c.parents()
	verdict := c.judge(ran, least)
	fmt.Fprintf(out, "%d cases ran, at least %d expected, %d failed, %d skipped\n", ran, least, len(c.failed), len(c.skipped))
	if o.times == "" {
		return verdict
	}
	return errors.Join(verdict, addTime(o.times, o.suite, ran, time.Since(begun).Seconds(), verdict))
}

// addTime appends a suite's line to a file, with its error, if any.
func addTime(file, suite string, cases int, seconds float64, verdict error) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("writing times: %w", err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing times: %w", err)
	}
	outcome := "ok"
	if verdict != nil {
		outcome = strings.ReplaceAll(verdict.Error(), "\n", " ")
	}
	_, err = fmt.Fprintf(f, "%s\t%d\t%.0f\t%s\n", suite, cases, seconds, outcome)
	return errors.Join(err, f.Close())
}

// judge returns what is wrong with a finished suite.
func (c *counter) judge(ran, least int) error {
	switch {
	case len(c.failed) > 0:
		return fmt.Errorf("failed: %s", strings.Join(c.failed, ", "))
	case len(c.skipped) > 0:
		return fmt.Errorf("skipped: %s", strings.Join(c.skipped, ", "))
	case ran == 0: // go test itself failed, and reports that elsewhere
		return errors.New("no case ran")
	case ran < least:
		return fmt.Errorf("%d cases ran, %d expected", ran, least)
	}
	return nil
}

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// counter keeps the output of running cases, and drops it when they pass.
type counter struct {
	options

	out     io.Writer
	output  map[string][]string // :: case → its lines; "" for the package itself
	cases   map[string]bool     // :: package and test → finished
	failed  []string
	skipped []string
}

func (c *counter) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 4<<20) // go test splits output into lines, but a dump of a body can be one long line
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			// Not an event: a build error of an older toolchain, or a program's write to standard output.
			fmt.Fprintln(c.out, lines.Text())
			continue
		}
		c.add(e)
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading test events: %w", err)
	}
	return nil
}

func (c *counter) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		c.output[key] = append(c.output[key], e.Output)
		if e.Action == "build-output" {
			fmt.Fprint(c.out, e.Output)
		}
	case "pass", "skip":
		if e.Test == "" {
			if c.quiet && e.Action == "pass" {
				fmt.Fprintf(c.out, "pass %s (%.1fs)\n", e.Package, e.Elapsed)
			}
			delete(c.output, key)
			return
		}
		c.cases[key] = true
		if !c.quiet || e.Action == "skip" {
			fmt.Fprintf(c.out, "%-4s %s (%.1fs)\n", e.Action, e.Test, e.Elapsed)
		}
		c.tell(c.output[key])
		c.keepDump(e.Package, c.output[key])
		if e.Action == "skip" {
			c.skipped = append(c.skipped, e.Test)
		}
		delete(c.output, key)
	case "fail":
		name := e.Test
		if name == "" {
			name = e.Package
		} else {
			c.cases[key] = true
		}
		c.failed = append(c.failed, name)
		fmt.Fprintf(c.out, "fail %s (%.1fs)\n%s", name, e.Elapsed, strings.Join(c.output[key], ""))
		delete(c.output, key)
		if e.Test == "" {
			c.tellRest(e.Package)
		}
	}
}

// keepDump gives the stacks of a package that ran too long to the package. Package testing writes
// them while the case that hangs waits, and go test counts them to the last case that passed.
func (c *counter) keepDump(name string, lines []string) {
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "panic: test timed out") })
	if at >= 0 {
		c.output[name+" "] = append(c.output[name+" "], lines[at:]...)
	}
}

// tellRest prints what a package's cases wrote after their end: a data race of leftover goroutines
// fails only the package.
func (c *counter) tellRest(name string) {
	for _, key := range slices.Sorted(maps.Keys(c.output)) {
		if test, ok := strings.CutPrefix(key, name+" "); ok {
			fmt.Fprintf(c.out, "after %s:\n%s", test, strings.Join(c.output[key], ""))
			delete(c.output, key)
		}
	}
}

// tell prints what a case logged: the indented lines.
func (c *counter) tell(lines []string) {
	for _, line := range lines {
		if c.verbose && strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(line), "---") {
			fmt.Fprint(c.out, line)
		}
	}
}

// parents counts the finished tests that have subtests: they are not cases.
func (c *counter) parents() int {
	parents := map[string]bool{}
	for key := range c.cases {
		for i := strings.LastIndexByte(key, '/'); i >= 0; i = strings.LastIndexByte(key[:i], '/') {
			if c.cases[key[:i]] {
				parents[key[:i]] = true
			}
		}
	}
	return len(parents)
}
