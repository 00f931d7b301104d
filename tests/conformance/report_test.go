package main

import (
	"strings"
	"testing"
)

func TestTell(t *testing.T) {
	const (
		good = `{"ContainerHierarchyTexts":["[sig] Watchers"],"LeafNodeType":"It","LeafNodeText":"see","State":"passed","RunTime":1500000000}`
		bad  = `{"ContainerHierarchyTexts":["[sig] Watchers"],"LeafNodeType":"It","LeafNodeText":"look","State":"failed","Failure":{"Message":"saw nothing"}}`
		idle = `{"LeafNodeType":"It","LeafNodeText":"other","State":"skipped"}`
		once = `{"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"}`
		ends = `{"LeafNodeType":"SynchronizedAfterSuite","State":"panicked"}`
	)
	for _, tc := range []struct {
		name, report string
		want         int
		out, err     string
	}{
		{"all pass", `[{"SuiteSucceeded":true,"SpecReports":[` + once + `,` + good + `,` + idle + `]}]`, 1, "pass [sig] Watchers see (1.5s)\n1 specs passed, 0 failed", ""},
		{"one fails", `[{"SpecReports":[` + good + `,` + bad + `]}]`, 1, "saw nothing\n1 specs passed, 1 failed", "1 specs failed"},
		{"too few", `[{"SuiteSucceeded":true,"SpecReports":[` + good + `]}]`, 2, "1 specs passed, 0 failed, at least 2 expected", "1 specs ran, 2 expected"},
		{"the suite itself", `[{"SpecReports":[` + good + `,` + ends + `]}]`, 1, "panicked SynchronizedAfterSuite", "1 specs failed"},
		{"unsound", `[{"SpecialSuiteFailureReasons":["interrupted"],"SpecReports":[` + good + `]}]`, 1, "suite: interrupted", "outside its specs"},
		{"empty", `[]`, 0, "0 specs passed", "outside its specs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			err := tell(&out, []byte(tc.report), tc.want)
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("output %q, want %q in it", out.String(), tc.out)
			}
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
