//go:build e2e

package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// rate is the number of requests per second.
const rate = 120

var (
	minutes = flag.Float64("minutes", 20, "how long to break things")
	seed    = flag.Uint64("seed", 1, "what to draw faults and requests from")
	lane    = flag.String("lane", "h2", "what Fairlead offers its clients: h2 or http1")
)

func TestSoak(t *testing.T) {
	netns.Up(t, "10.79.0.0/16") // each extension server has its own address there
	dir := suite.Folder(t, "soak")
	file := must.Get(os.Create(filepath.Join(dir, "journal.jsonl")))(t)
	t.Cleanup(func() { must.Do(t, file.Close()) })
	journal := slog.New(slog.NewJSONHandler(file, nil))
	journal.Info("start", "seed", *seed, "minutes", *minutes, "lane", *lane)
	w := raise(t, dir, journal)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() { // ends with ctx
		if err := w.Wait(ctx); ctx.Err() == nil {
			cancel(fmt.Errorf("a process has died by itself: %w", err))
		}
	}()
	defer func() {
		if err := errors.Join(context.Cause(ctx), w.checker.report(t.Output())); err != nil {
			t.Error(err)
		}
		if len(w.checker.found()) > 0 {
			t.Errorf("an invariant did not hold; again: make soak SEED=%d MINUTES=%g LANE=%s", *seed, *minutes, *lane)
		}
	}()
	w.soak(ctx)
}

// soak is the run: a rest as the baseline, the torment, and a rest again.
func (w *world) soak(ctx context.Context) {
	l := newLoad(w)
	w.exercise(ctx, l)
	before := w.rest(ctx)
	w.t.Logf("seed %d, %s lane, %g minutes from %s", *seed, *lane, *minutes, time.Now().UTC().Format(time.RFC3339))
	l.start(ctx)
	w.torment(ctx, l)
	w.await(ctx, "everything, at the end", w.wrong)
	l.stop()
	w.exercise(ctx, l) // nothing is broken: no request may fail
	w.compare(before, w.rest(ctx))
}

// exercise runs the load until each of its classes has been used some dozens of times.
func (w *world) exercise(ctx context.Context, l *load) {
	l.start(ctx)
	defer l.stop()
	l.dose(ctx, "", 12*rate)
}
