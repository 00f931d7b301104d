// Package check compares values in tests, on go-cmp, and counts allocations. It is no assertion
// library: what is more than two values to compare is an if in the test.
package check

import (
	"fmt"
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
