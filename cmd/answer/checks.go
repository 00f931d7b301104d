package answer

import (
	"slices"
	"strings"
	"time"
)

// Check is one of Fairlead's own needs: a right, a certificate, an apiserver.
type Check struct {
	// Name is the check's. They are listed in docs/operations.md.
	Name string `json:"name"`
	// Status is passed, failed or unknown (not checked yet, or it cannot be), since Since. Zero
	// means since the start.
	Status string    `json:"status"`
	Since  time.Time `json:"since,omitzero"`
	// Message says what is wrong, or what is known. Empty means nothing.
	Message string `json:"message,omitempty"`
	// Users says what users notice of the failure: a sentence without its full stop. Empty means
	// nothing.
	Users string `json:"users,omitempty"`
	// Gates means that this replica is not ready while it fails.
	Gates bool `json:"gates"`
	// Advice is what to check, Command what to run, Runbook where to read on. Empty means nothing.
	Advice  string `json:"advice,omitempty"`
	Command string `json:"command,omitempty"`
	Runbook string `json:"runbook,omitempty"`
}

// Failing returns the checks that fail: first those without which this replica takes no requests,
// then those that users notice.
func (s *Status) Failing() []Check {
	failing := slices.DeleteFunc(slices.Clone(s.Checks), func(c Check) bool { return !c.Failed() })
	slices.SortStableFunc(failing, func(a, b Check) int { return a.rank() - b.rank() })
	return failing
}

// Failed reports whether the check fails.
func (c *Check) Failed() bool { return c.Status == "failed" }

func (c *Check) rank() int {
	switch {
	case c.Gates:
		return 0
	case c.Users != "":
		return 1
	}
	return 2
}

// Served says in one line whether users can be served, and if not, why. It is not ok if one of the
// checks fails.
func (s *Status) Served() (line string, ok bool) {
	failing := s.Failing()
	if len(failing) == 0 {
		return "Users are served.", true
	}
	switch c := failing[0]; c.rank() {
	case 0:
		causes := make([]string, 0, len(failing)) // the others may say why
		for _, c := range failing {
			causes = append(causes, c.Name+": "+c.Message)
		}
		return "This replica takes no requests: " + strings.Join(causes, "; "), false
	case 1:
		return c.Users + ": " + c.Message, false
	default:
		return "Users are served, but " + c.Name + ": " + c.Message, false
	}
}
