//go:build e2e

package soak

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

type holding struct {
	goroutines, files float64
	heap              float64 // bytes, just after a collection
}

const (
	// restEvery is the interval of looks at a resting door, and restLooks their maximum: three
	// minutes, longer than any idle timeout.
	restEvery = 500 * time.Millisecond
	restLooks = 360
)

// rest waits until neither door changes any more, and returns what they hold.
func (w *world) rest(ctx context.Context) [2]holding {
	var last [2]holding
	for n, same := 0, 0; n < restLooks; n++ {
		now := w.holds(ctx)
		const near = 3 // goroutines and files of a probe or a scrape
		if same++; !last[0].near(now[0], near) || !last[1].near(now[1], near) {
			same, last = 0, now
		}
		if same == 20 { // 10 s: everything periodic has run
			return now
		}
		pause(ctx, restEvery)
	}
	return last
}

func (h holding) near(o holding, d float64) bool {
	return max(h.goroutines, o.goroutines)-min(h.goroutines, o.goroutines) <= d && max(h.files, o.files)-min(h.files, o.files) <= d
}

func (w *world) holds(ctx context.Context) (all [2]holding) {
	for i, d := range w.doors {
		for range 2 { // a sync.Pool's content survives one collection
			must.Get(ask.Get(ctx, d.admin, d.Admin.URL+"/debug/pprof/heap?gc=1"))(w.t)
		}
		m := must.Get(ask.Metrics(ctx, d.admin, d.Admin.URL))(w.t)
		all[i] = holding{m["go_goroutines"], m["process_open_fds"], m["go_memstats_heap_alloc_bytes"]}
	}
	return all
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
		// Half as much again and 8 MiB: metrics of new status codes, caches at their limits,
		// fragmentation.
		held("KiB of heap", b.heap/1024, a.heap/1024, (1.5*b.heap+8*mib)/1024)
		for _, page := range []string{"heap", "goroutine"} { // to find a leak
			text := must.Get(ask.Get(w.t.Context(), d.admin, d.Admin.URL+"/debug/pprof/"+page))(w.t)
			must.Do(w.t, os.WriteFile(filepath.Join(w.Dir(), page+"-"+d.name+".pb.gz"), []byte(text), 0o600))
		}
	}
}
