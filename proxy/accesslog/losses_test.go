package accesslog

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Lost lines are logged once a minute, however many they are.
func TestLossesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		_ = r.Close()
		var log strings.Builder
		l := newLog(t, Config{Writer: w, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 * 60 {
			l.Add(1, full())
			l.flush()
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "access log lost lines"); n != 3 {
			t.Errorf("logged %d times in 3 minutes:\n%s", n, log.String())
		}
	})
}
