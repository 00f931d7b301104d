//go:build e2e

package faults

import (
	"bufio"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

// series is a scrape: the value of each series, spelled as in the text.
type series map[string]float64

// scrapeEvery is how often the metrics are read: one reader for all cases, since a scrape costs
// Fairlead some milliseconds.
const scrapeEvery = 50 * time.Millisecond

// follow reads the metrics until the test ends.
func (d *door) follow(t *testing.T) {
	t.Helper()
	beside(t, func(ctx context.Context) {
		tick := time.NewTicker(scrapeEvery)
		defer tick.Stop()
		for {
			if text, err := d.get(ctx, "/metrics"); err == nil {
				s := parse(text)
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

// scrape is the latest state of the metrics.
func (d *door) scrape() series {
	if s := d.now.Load(); s != nil {
		return *s
	}
	return nil
}

func parse(text string) series {
	s := series{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 {
			if v, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil {
				s[lines.Text()[:i]] = v
			}
		}
	}
	return s
}
