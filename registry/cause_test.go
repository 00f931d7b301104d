package registry

import (
	"strings"
	"testing"
)

// An error of a backend's choice takes no more than 1 KiB of the table.
func TestCauseIsCut(t *testing.T) {
	if got := normalizeCause(strings.Repeat("x", 5000)); got != strings.Repeat("x", 1024)+"…" {
		t.Errorf("%d bytes", len(got))
	}
}
