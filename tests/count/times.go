package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

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
	if end := f.Close(); err == nil {
		err = end
	}
	if err != nil {
		return fmt.Errorf("writing times: %w", err)
	}
	return nil
}

// printTable prints a file of times in columns.
func printTable(out io.Writer, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading times: %w", err)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "suite\tcases\tseconds\toutcome\n%s", b)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing times: %w", err)
	}
	return nil
}
