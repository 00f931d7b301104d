package main

import (
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// While nobody reads the log, who writes lines waits once, for a second. What is stuck still comes, so do later ones.
func TestBlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		log, began, text := slog.New(slog.NewTextHandler(patient{w, make(chan struct{}, 1)}, nil)), time.Now(), make([]byte, 1<<10)
		for i := range 100 {
			log.Info("line", "i", i)
		}
		check.Same(t, time.Second, time.Since(began), "the time of 100 lines")
		n := must.Get(r.Read(text))(t)
		check.Has(t, string(text[:n]), "i=0\n")
		synctest.Wait()
		go log.Info("line", "i", 100)
		n = must.Get(r.Read(text))(t)
		check.Has(t, string(text[:n]), "i=100\n")
	})
}
