//go:build e2e

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
)

// scrapeEvery is the interval of scrapes: one reader for all cases, because a scrape costs Fairlead
// some milliseconds.
const scrapeEvery = 50 * time.Millisecond

// follow reads the metrics until the test ends.
func (d *door) follow(t *testing.T) {
	t.Helper()
	beside(t, func(ctx context.Context) {
		tick := time.NewTicker(scrapeEvery)
		defer tick.Stop()
		for {
			if s, err := ask.Metrics(ctx, d.admin, d.Admin.URL); err == nil {
				d.now.Store(&s)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// scrape returns the latest metrics.
func (d *door) scrape() map[string]float64 {
	if s := d.now.Load(); s != nil {
		return *s
	}
	return nil
}
