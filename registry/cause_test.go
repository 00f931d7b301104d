package registry

import (
	"strings"
	"testing"
)

// A backend's error is cut to 1 KiB in the table.
func TestCauseIsCut(t *testing.T) {
	if got := normalizeCause(strings.Repeat("x", 5000)); got != strings.Repeat("x", 1024)+"…" {
		t.Errorf("%d bytes", len(got))
	}
}
