package needs

import (
	"errors"
	"log/slog"
	"net/http"
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
	texts := []string{
		expired + "9:00 is after 8:00", expired + "9:01 is after 8:00", "away", "away", expired + "9:02 is after 8:00",
		"read tcp 10.0.0.1:7->10.0.0.2:443: reset", "read tcp 10.0.0.1:8->10.0.0.2:443: reset",
	}
	c := Config{Checks: []Check{{Name: "reviews", Look: func(time.Time) answer.Check {
		found := answer.Check{Status: Failed, Message: texts[0]}
		texts = texts[1:]
		return found
	}}}}
	c.Logger, c.Ready = slog.New(slog.NewTextHandler(&log, nil)), func() bool { return true }
	for n := New(c); len(texts) > 0; {
		n.look(time.Now())
	}
	check.Same(t, 4, strings.Count(log.String(), "a check fails"), "lines in %s", &log)
}

// A gate is logged whether or not anybody asks for /readyz; but with a warning only once it has passed.
func TestStartWarnsOfNothing(t *testing.T) {
	var log strings.Builder
	gate := errors.New("no table")
	c := Config{Checks: []Check{{Name: "table", Gate: func(*http.Request) error { return gate }}}, Ready: func() bool { return gate == nil }}
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	n := New(c)
	for _, is := range []error{gate, nil, errors.New("lost"), errors.New("lost")} {
		gate = is
		n.look(time.Now())
	}
	check.Has(t, log.String(), `level=INFO msg="not ready yet" check=table reason="no table"`)
	check.Same(t, 1, strings.Count(log.String(), "WARN"), "warnings after it was ready, in %s", &log)
}
