package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// suiteReport holds the fields that are used of Ginkgo's report (--ginkgo.json-report).
type suiteReport struct {
	SuiteSucceeded             bool
	SpecialSuiteFailureReasons []string
	SpecReports                []specReport
}

type specReport struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct{ Message string }
}

// tell prints a line per spec that ran and the totals. It returns an error when a spec failed or
// fewer than want ran.
func tell(out io.Writer, data []byte, want int) error {
	var suites []suiteReport
	if err := json.Unmarshal(data, &suites); err != nil {
		return fmt.Errorf("reading report: %w", err)
	}
	passed, failed, sound := 0, 0, len(suites) > 0
	for _, s := range suites {
		sound = sound && s.SuiteSucceeded
		for _, why := range s.SpecialSuiteFailureReasons {
			fmt.Fprintln(out, "suite:", why)
		}
		for _, r := range s.SpecReports {
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			switch {
			case r.State == "skipped" || r.State == "pending":
			case r.State == "passed" && r.LeafNodeType == "It":
				passed++
				fmt.Fprintf(out, "pass %s (%.1fs)\n", name, r.RunTime.Seconds())
			case r.State != "passed":
				failed++
				fmt.Fprintf(out, "%s %s %s (%.1fs)\n%s\n", r.State, r.LeafNodeType, name, r.RunTime.Seconds(), r.Failure.Message)
			}
		}
	}
	fmt.Fprintf(out, "%d specs passed, %d failed, at least %d expected\n", passed, failed, want)
	switch {
	case failed > 0:
		return fmt.Errorf("%d specs failed", failed)
	case passed < want:
		return fmt.Errorf("%d specs ran, %d expected", passed, want)
	case !sound:
		return errors.New("the suite failed outside its specs")
	}
	return nil
}
