//go:build e2e

package directory

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// line is a line of the log.
type line map[string]any

func (d *door) lines() []line {
	var all []line
	for text := range strings.Lines(d.Log.String()) {
		var one line
		if json.Unmarshal([]byte(text), &one) == nil {
			all = append(all, one)
		}
	}
	return all
}

// find returns the first line with a message and the given values.
func (d *door) find(message string, pairs ...any) line {
	for _, one := range d.lines() {
		ok := one["msg"] == message
		for i := 0; i+1 < len(pairs); i += 2 {
			ok = ok && fmt.Sprint(one[fmt.Sprint(pairs[i])]) == fmt.Sprint(pairs[i+1])
		}
		if ok {
			return one
		}
	}
	return nil
}

// logs waits until the log reports a problem of a file or an APIService with all of these texts.
func (d *door) logs(t *testing.T, key, of string, says ...string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, "reported", func() (bool, string) {
		return slices.ContainsFunc(d.lines(), func(l line) bool {
			return l[key] == of && !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(fmt.Sprint(l["problem"]), s) })
		}), d.Log.String()
	})
}

// at returns the time of a line.
func (l line) at(t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(l["time"]))
	if err != nil {
		t.Fatalf("line %v: %v", l, err)
	}
	return at
}
