// Package check compares values in tests, on go-cmp, looks for texts and errors, and counts allocations. It is no
// assertion library: what needs more than a line is an if in the test.
package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Same fails the test if two values differ, and says what they are.
func Same[T any](t testing.TB, want, got T, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(format, args...), diff)
	}
}

// Has fails the test for each part that a text lacks.
func Has(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// Lacks fails the test for each part that a text has.
func Lacks(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%q is in:\n%s", part, text)
		}
	}
}

// Fault fails the test unless the text of err has want. An empty want means no error.
func Fault(t testing.TB, want string, err error, format string, args ...any) {
	t.Helper()
	if got := fmt.Sprint(err); (err == nil) != (want == "") || err != nil && !strings.Contains(got, want) {
		t.Errorf("%s: error %s, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

// Is fails the test unless err is the one that is wanted, as errors.Is says. A nil want means no error.
func Is(t testing.TB, want, err error, format string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", fmt.Sprintf(format, args...), err, want)
	}
}

// Err returns the error of a call that returns a value beside it: check.Is(t, io.EOF, check.Err(c.Read(b)), "read").
func Err[T any](_ T, err error) error { return err }
