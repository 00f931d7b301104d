package documents

import (
	"context"
	"time"
)

// Pace is how often the local apiserver is asked.
type Pace struct {
	// Every is the time between requests while nothing happens. Required.
	Every time.Duration
	// After are the pauses between the requests that follow a hint; the first is sent at once. The
	// change behind a hint may take a while to show. Nil means none.
	After []time.Duration
}

const (
	// leastRest is the least pause between two requests: events of one change cause one request.
	leastRest = 20 * time.Millisecond
	// restFactor is how much longer than a request or a publication the pause after it is: in a
	// storm of changes fetching, reading and merging growing documents takes a fifth of a core
	// each.
	restFactor = 4
	// firstAgain is the pause after a first failure; it doubles up to Every.
	firstAgain = 100 * time.Millisecond
)

// follow calls ask repeatedly until ctx ends. It is for the one server with hints of changes;
// backends are in a set.
func (p Pace) follow(ctx context.Context, hints <-chan struct{}, ask func(context.Context) error) {
	var after []time.Duration
	failures := 0
	for {
		begun := time.Now()
		err := ask(ctx)
		rest := min(max(leastRest, restFactor*time.Since(begun)), p.Every)
		wait := p.Every
		switch {
		case err != nil:
			failures++
			wait = min(firstAgain<<min(failures-1, 10), p.Every)
		case len(after) > 0:
			wait, after, failures = after[0], after[1:], 0
		default:
			failures = 0
		}
		if !sleep(ctx, rest) {
			return
		}
		t := time.NewTimer(wait - rest)
		select {
		case <-t.C:
		case <-hints:
			after = p.After
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
