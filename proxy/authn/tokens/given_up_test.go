package tokens

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead-proxy/fairlead/tests/issuer"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// lines receives the lines of a log.
type lines chan string

func (s lines) Write(line []byte) (int, error) {
	s <- string(line)
	return len(line), nil
}

// A configuration that is replaced while it waits for keys is logged, and stops fetching them.
func TestGivenUpConfiguration(t *testing.T) {
	dead := issuer.Start(t)
	nobody, waits := head, dead.Config("")
	dead.Close()
	log := make(lines, 10)
	k := New(Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	take := func(text string) {
		t.Helper()
		must.Do(t, k.TakeConfig([]byte(text)))
	}
	want := func(message string) {
		t.Helper()
		if line := <-log; !strings.Contains(line, `msg="authentication configuration `+message) {
			t.Fatalf("logged: %s", line)
		}
	}
	take(nobody)
	must.Run(t, k.Run)
	want("activated")
	before := goleak.IgnoreCurrent()
	take(waits)
	must.Soon(t, 30*time.Second, "waited for", func() bool { return goleak.Find(before) != nil })
	take(nobody)
	want(`not activated, the previous one stays" err="waiting for`)
	want("activated")
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
