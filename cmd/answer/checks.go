package answer

import (
	"fmt"
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

// Served says in one line whether users can be served, and if not, why. It is ok only if this
// replica is ready, no check fails and every APIService is available.
func (s *Status) Served() (line string, ok bool) {
	failing, unavailable, worst := s.Failing(), s.Unavailable(), Check{}
	away := slices.DeleteFunc(slices.Clone(unavailable), (*APIService).served)
	if len(failing) > 0 {
		worst = failing[0]
	}
	switch {
	case worst.Gates:
		causes := make([]string, 0, len(failing)) // the others may say why
		for _, c := range failing {
			causes = append(causes, c.Name+": "+c.Message)
		}
		return "This replica takes no requests: " + strings.Join(causes, "; "), false
	case s.Ready != "": // it shuts down
		return "This replica takes no requests: " + s.Ready, false
	case worst.Users != "":
		return worst.Users + ": " + worst.Message, false
	case len(away) == 1:
		return "Users are served, but get 503 from " + away[0].Name, false
	case len(away) > 1:
		return fmt.Sprintf("Users are served, but get 503 from %s and %d more", away[0].Name, len(away)-1), false
	case worst.Failed():
		return "Users are served, but " + worst.Name + ": " + worst.Message, false
	case len(unavailable) > 0:
		return "Users are served, but " + unavailable[0].Name + " is unavailable", false
	}
	return "Users are served.", true
}
