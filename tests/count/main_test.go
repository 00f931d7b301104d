package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

func TestRun(t *testing.T) {
	const (
		twoSubtests = `{"Action":"run","Package":"p/e2e","Test":"TestA"}
{"Action":"output","Package":"p/e2e","Test":"TestA/x","Output":"noise\n"}
{"Action":"pass","Package":"p/e2e","Test":"TestA/x","Elapsed":0.1}
{"Action":"pass","Package":"p/e2e","Test":"TestA/y/deep","Elapsed":0.1}
{"Action":"pass","Package":"p/e2e","Test":"TestA/y","Elapsed":0.1}
{"Action":"pass","Package":"p/e2e","Test":"TestA","Elapsed":0.2}
{"Action":"pass","Package":"p/e2e","Elapsed":0.3}
`
		oneFails = `{"Action":"output","Package":"p","Test":"TestB","Output":"because\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":1}
{"Action":"fail","Package":"p","Elapsed":1}
`
		oneSkips  = `{"Action":"skip","Package":"p","Test":"TestC"}` + "\n"
		raceAfter = `{"Action":"pass","Package":"p","Test":"TestD","Elapsed":1}
{"Action":"output","Package":"p","Test":"TestD","Output":"WARNING: DATA RACE\n"}
{"Action":"fail","Package":"p","Elapsed":1}
`
		hangs = `{"Action":"output","Package":"p","Test":"TestE","Output":"=== RUN   TestE\n"}
{"Action":"output","Package":"p","Test":"TestF","Output":"--- PASS: TestF (0.00s)\n"}
{"Action":"output","Package":"p","Test":"TestF","Output":"panic: test timed out after 2s\n"}
{"Action":"output","Package":"p","Test":"TestF","Output":"goroutine 9 [chan receive]:\n"}
{"Action":"pass","Package":"p","Test":"TestF","Elapsed":0}
{"Action":"fail","Package":"p","Elapsed":2}
`
		brokenBuild = `{"ImportPath":"p","Action":"build-output","Output":"x.go:1: oops\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p"}
`
	)
	tests := []struct {
		name, in, least string
		wantOut         string
		wantErr         string // empty: none
	}{
		{"parents are not cases", twoSubtests, "2", "2 cases ran, at least 2 expected, 0 failed, 0 skipped\n", ""},
		{"too few", twoSubtests, "3", "2 cases ran", "2 cases ran, 3 expected"},
		{"a failure shows its output", oneFails, "0", "fail TestB (1.0s)\nbecause\n", "failed: TestB, p"},
		{"what comes after a case is shown with its package", raceAfter, "0", "after TestD:\nWARNING: DATA RACE\n", "failed: p"},
		{"a hang shows its stacks", hangs, "0", "fail p (2.0s)\npanic: test timed out after 2s\ngoroutine 9", "failed: p"},
		{"a skip is a failure", oneSkips, "0", "1 skipped", "skipped: TestC"},
		{"a broken build is a failure", brokenBuild, "0", "x.go:1: oops\n", "failed: p"},
		{"nothing ran", "", "0", "0 cases ran", "no case ran"},
		{"nothing was there to run", `{"Action":"skip","Package":"p"}`, "0", "0 cases ran", "no case ran"},
		{"an unreadable count", "", "many", "", "reading count"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "COUNT")
			if err := os.WriteFile(file, []byte(tt.least+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(strings.NewReader(tt.in), &out, options{want: file})
			if !strings.Contains(out.String(), tt.wantOut) {
				t.Errorf("output %q lacks %q", out.String(), tt.wantOut)
			}
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// The option verbose shows the logs of passed cases.
func TestVerbose(t *testing.T) {
	const in = `{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: 7 ms\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.2}
{"Action":"pass","Package":"p","Elapsed":0.3}
`
	const summary = "1 cases ran, at least 0 expected, 0 failed, 0 skipped\n"
	for _, tt := range []struct {
		options options
		want    string
	}{
		{options{}, "pass TestA (0.2s)\n" + summary},
		{options{verbose: true}, "pass TestA (0.2s)\n    a_test.go:1: 7 ms\n" + summary},
		{options{quiet: true}, "pass p (0.3s)\n" + summary},
	} {
		var out strings.Builder
		if err := run(strings.NewReader(in), &out, tt.options); err != nil || out.String() != tt.want {
			t.Errorf("%+v: %v, %q", tt.options, err, out.String())
		}
	}
}

// Each suite gets a line, with any outcome.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still
		file := filepath.Join(t.TempDir(), "times")
		for _, suite := range []string{"good", "bad"} {
			in := `{"Action":"` + map[string]string{"good": "pass", "bad": "fail"}[suite] + `","Package":"p","Test":"TestA"}`
			if err := run(strings.NewReader(in), &strings.Builder{}, options{suite: suite, times: file}); (err != nil) != (suite == "bad") {
				t.Errorf("%s: %v", suite, err)
			}
		}
		var out strings.Builder
		if err := printTable(&out, file); err != nil {
			t.Fatal(err)
		}
		const want = "suite  cases  seconds  outcome\ngood   1      0        ok\nbad    1      0        failed: TestA\n"
		if out.String() != want {
			t.Errorf("printed\n%swant\n%s", out.String(), want)
		}
		if err := printTable(&out, file+"s"); err == nil {
			t.Error("no error without a file of times")
		}
	})
}
