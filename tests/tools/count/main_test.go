package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// events makes events of go test: action, test ("-" for the package) and output or nothing.
func events(lines string) string {
	var out strings.Builder
	for line := range strings.Lines(lines) {
		var e event
		e.Package, e.Elapsed = "p", 1
		if f := strings.SplitN(strings.TrimSpace(line), " ", 3); len(f) > 1 {
			if e.Action, e.Test = f[0], strings.TrimPrefix(f[1], "-"); len(f) > 2 {
				e.Output = f[2] + "\n"
			}
			data, _ := json.Marshal(e) // it has only strings and a number
			out.Write(append(data, '\n'))
		}
	}
	return out.String()
}

func TestRun(t *testing.T) {
	const subtests = "output TestA/x noise\npass TestA/x\npass TestA/y/deep\npass TestA/y\npass TestA\npass -"
	const hang = "output TestF --- PASS: TestF\noutput TestF panic: test timed out after 2s\noutput TestF goroutine 9\npass TestF\nfail -"
	const logs = "output TestA === RUN   TestA\noutput TestA     a_test.go:1: 7 ms\npass TestA\npass -"
	const summary = "1 cases ran, at least 0 expected, 0 failed, 0 skipped\n"
	for _, tt := range []struct {
		name, in, least string
		options         options
		wantOut         string
		wantErr         string // empty: none
	}{
		{"parents are not cases", subtests, "2", options{}, "2 cases ran, at least 2 expected, 0 failed, 0 skipped\n", ""},
		{"too few", subtests, "3", options{}, "2 cases ran", "2 cases ran, 3 expected"},
		{"a failure shows its output", "output TestB because\nfail TestB\nfail -", "0", options{}, "fail TestB (1.0s)\nbecause\n", "failed: TestB, p"},
		{"what comes after a case", "pass TestD\noutput TestD DATA RACE\nfail -", "0", options{}, "after TestD:\nDATA RACE\n", "failed: p"},
		{"a hang shows its stacks", hang, "0", options{}, "fail p (1.0s)\npanic: test timed out after 2s\ngoroutine 9", "failed: p"},
		{"a skip is a failure", "skip TestC", "0", options{}, "1 skipped", "skipped: TestC"},
		{"a broken build is a failure", "build-output - x.go:1: oops\nfail -", "0", options{}, "x.go:1: oops\n", "failed: p"},
		{"nothing ran", "", "0", options{}, "0 cases ran", "no case ran"},
		{"nothing was there to run", "skip -", "0", options{}, "0 cases ran", "no case ran"},
		{"an unreadable count", "", "many", options{}, "", "reading count"},
		{"no logs of what passes", logs, "0", options{}, "pass TestA (1.0s)\n" + summary, ""},
		{"verbose", logs, "0", options{verbose: true}, "pass TestA (1.0s)\n    a_test.go:1: 7 ms\n" + summary, ""},
		{"quiet", logs, "0", options{quiet: true}, "pass p (1.0s)\n" + summary, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.want = filepath.Join(t.TempDir(), "COUNT")
			must.Do(t, os.WriteFile(tt.options.want, []byte(tt.least+"\n"), 0o600))
			var out strings.Builder
			err := run(strings.NewReader(events(tt.in)), &out, tt.options)
			check.Has(t, out.String(), tt.wantOut)
			check.Fault(t, tt.wantErr, err, "run")
		})
	}
}

// Each suite gets a line, with any outcome.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still
		file := filepath.Join(t.TempDir(), "new", "times")
		for _, suite := range []string{"good", "bad"} {
			in := events(map[string]string{"good": "pass", "bad": "fail"}[suite] + " TestA")
			err := run(strings.NewReader(in), &strings.Builder{}, options{suite: suite, times: file})
			check.Same(t, suite == "bad", err != nil, "%s fails: %v", suite, err)
		}
		const want = "good\t1\t0\tok\nbad\t1\t0\tfailed: TestA\n"
		check.Same(t, want, string(must.Get(os.ReadFile(file))(t)), "what it wrote")
	})
}
