package check

import (
	"cmp"
	"fmt"
	"testing"
)

// Within fails the test if a value is less than the least or more than the most.
func Within[T cmp.Ordered](t testing.TB, least, most, got T, format string, args ...any) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %v, want %v to %v", fmt.Sprintf(format, args...), got, least, most)
	}
}
