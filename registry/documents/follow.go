package documents

import (
	"context"
	"time"
)

// Pace is how often the local apiserver is asked.
type Pace struct {
	// Every is the time between questions while nothing happens. Required.
	Every time.Duration
	// After are the pauses between the questions that follow a hint; the first comes at once. What is hinted at may take a while to come. Nil: none.
	After []time.Duration
}

const (
	// leastRest is between two questions, so that the events of one change are one question.
	leastRest = 20 * time.Millisecond
	// restFactor is how much longer than a question or a publication the rest after it is: in a storm of changes, asking for, reading and merging documents that grow takes a fifth of a core each.
	restFactor = 4
	// firstAgain is the pause after a first failure; it doubles up to Every.
	firstAgain = 100 * time.Millisecond
)

// follow asks over and over until ctx ends. It is for the one server whose changes somebody hears of, and gives hints of; backends are a set's.
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
