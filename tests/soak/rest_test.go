//go:build e2e

package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/soak/check"
)

type holding struct {
	goroutines, files float64
	heap, resident    float64 // bytes; heap just after a collection
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
		all[i] = holding{m["go_goroutines"], m["process_open_fds"], m["go_memstats_heap_alloc_bytes"], m["process_resident_memory_bytes"]}
	}
	return all
}

// compare records what is left over. The first door has run through everything. The second is
// younger, and may not hold more either.
func (w *world) compare(before, after [2]holding) {
	const mib = 1 << 20
	t := tabwriter.NewWriter(w.t.Output(), 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "at rest\tgoroutines\tdescriptors\theap MiB\tresident MiB\n")
	for i, d := range w.doors {
		b, a := before[i], after[i]
		_, _ = fmt.Fprintf(t, "door %s\t%.0f → %.0f\t%.0f → %.0f\t%.1f → %.1f\t%.0f → %.0f\n", d.name,
			b.goroutines, a.goroutines, b.files, a.files, b.heap/mib, a.heap/mib, b.resident/mib, a.resident/mib)
		// 12 goroutines and descriptors vary: scrapes, handshakes of probes.
		w.checker.Left("goroutines of door "+d.name, a.goroutines, b.goroutines+12)
		w.checker.Left("descriptors of door "+d.name, a.files, b.files+12)
		// Half as much again and 8 MiB: metrics of new status codes, caches at their limits,
		// fragmentation.
		w.checker.Left("heap of door "+d.name, a.heap, 1.5*b.heap+8*mib)
	}
	_ = t.Flush()
	w.journal.Write("rest", "before", fmt.Sprint(before), "after", fmt.Sprint(after))
	if w.checker.Outcome(check.NothingLeft).Violated == 0 {
		return
	}
	for _, d := range w.doors { // to find the leak
		for name, path := range map[string]string{"heap-" + d.name + ".pb.gz": "/debug/pprof/heap", "goroutines-" + d.name + ".txt": "/debug/pprof/goroutine?debug=1"} {
			if text, err := ask.Get(context.Background(), d.admin, d.Admin.URL+path); err == nil {
				_ = os.WriteFile(filepath.Join(w.Dir(), name), []byte(text), 0o600)
			}
		}
	}
}
