package needs

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A failure is logged again if its cause is another, and not because time passes.
func TestLog(t *testing.T) {
	var log strings.Builder
	const expired = "it has expired: current time "
	texts := []string{expired + "9:00 is after 8:00", expired + "9:01 is after 8:00", "away", "away", expired + "9:02 is after 8:00"}
	c := Config{Checks: []Check{{Name: "reviews", Look: func(time.Time) answer.Check {
		found := answer.Check{Status: Failed, Message: texts[0]}
		texts = texts[1:]
		return found
	}}}}
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for n := New(c); len(texts) > 0; {
		n.look(time.Now())
	}
	check.Same(t, 3, strings.Count(log.String(), "a check fails"), "lines in %s", &log)
}
