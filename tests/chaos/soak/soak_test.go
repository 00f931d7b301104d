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

	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

const rate = 120 // the number of requests per second

var (
	minutes = flag.Float64("minutes", 20, "how long to break things")
	seed    = flag.Uint64("seed", 1, "what to draw faults and requests from")
	lane    = flag.String("lane", "h2", "what Fairlead offers its clients: h2 or http1")
)

// TestSoak is the run: a rest as the baseline, the torment, and a rest again.
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
		if len(w.checker.violations()) > 0 {
			t.Errorf("an invariant did not hold; again: make soak SEED=%d MINUTES=%g LANE=%s", *seed, *minutes, *lane)
		}
	}()
	w.exercise(ctx)
	before := w.rest(ctx)
	t.Logf("seed %d, %s lane, %g minutes from %s", *seed, *lane, *minutes, time.Now().UTC().Format(time.RFC3339))
	stop := w.load(ctx)
	w.torment(ctx)
	w.await(ctx, "everything, at the end", "")
	stop()
	w.exercise(ctx) // nothing is broken: no request may fail
	w.compare(before, w.rest(ctx))
}

// exercise runs the load until each of its classes has been used some dozens of times.
func (w *world) exercise(ctx context.Context) {
	defer w.load(ctx)()
	w.dose(ctx, "", 12*rate)
}

// holding is what a door holds.
type holding struct {
	goroutines, files float64
	heap              float64 // bytes, just after a collection
}

// rest waits until neither door changes any more, for five minutes at most, and returns what they hold.
func (w *world) rest(ctx context.Context) (last [2]holding) {
	near := func(a, b float64) bool { return max(a, b)-min(a, b) <= 3 } // goroutines and files of a probe or a scrape
	// 200: 100 s, in which connections to backends that one burst opened have ended, after 90 s without a stream.
	for n, same := 0, 0; n < 600 && same < 200; n++ {
		same++
		for i, d := range w.doors {
			for range 2 { // a sync.Pool's content survives one collection
				must.Get(ask.Get(ctx, d.admin, d.Admin.URL+"/debug/pprof/heap?gc=1"))(w.t)
			}
			m := must.Get(ask.Metrics(ctx, d.admin, d.Admin.URL))(w.t)
			now := holding{m["go_goroutines"], m["process_open_fds"], m["go_memstats_heap_alloc_bytes"]}
			if !near(now.goroutines, last[i].goroutines) || !near(now.files, last[i].files) {
				last[i], same = now, 0
			}
			last[i].heap = now.heap
		}
		pause(ctx, 500*time.Millisecond)
	}
	return last
}

// compare records what is left over. The first door has run through everything. The second is
// younger, and may not hold more either.
func (w *world) compare(before, after [2]holding) {
	const mib = 1 << 20
	for i, d := range w.doors {
		b, a := before[i], after[i]
		held := func(what string, before, after, most float64) {
			w.t.Logf("at rest: %s of door %s: %.0f → %.0f", what, d.name, before, after)
			w.checker.must(nothingLeft, after <= most, "%s of door %s: %.0f, at most %.0f", what, d.name, after, most)
		}
		// 12 goroutines and descriptors vary: scrapes, handshakes of probes.
		held("goroutines", b.goroutines, a.goroutines, b.goroutines+12)
		held("descriptors", b.files, a.files, b.files+12)
		// Half as much again and 8 MiB: metrics of new status codes, caches at their limits, fragmentation.
		held("KiB of heap", b.heap/1024, a.heap/1024, (1.5*b.heap+8*mib)/1024)
		for _, page := range []string{"heap", "goroutine"} { // to find a leak
			text := must.Get(ask.Get(w.t.Context(), d.admin, d.Admin.URL+"/debug/pprof/"+page))(w.t)
			must.Do(w.t, os.WriteFile(filepath.Join(w.Dir(), page+"-"+d.name+".pb.gz"), []byte(text), 0o600))
		}
	}
}
