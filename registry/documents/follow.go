package documents

import (
	"context"
	"time"
)

const (
	// leastRest is the least pause between two requests: events of one change cause one request.
	leastRest = 20 * time.Millisecond
	// restFactor is how much longer than a request or a publication the pause after it is: in a
	// storm of changes fetching, reading and merging growing documents takes a fifth of a core
	// each.
	restFactor = 4
	// firstAgain is the pause after a first failure; it doubles up to Every.
	firstAgain = 100 * time.Millisecond
	// firstHurry and lastHurry are the pauses after the request that follows a hint, doubling:
	// kube-apiserver's discovery changes some tens of milliseconds before or after the CRD or the
	// APIService behind it, its OpenAPI a second or two.
	firstHurry = 30 * time.Millisecond
	lastHurry  = time.Second
)

// follow calls ask repeatedly until ctx ends. It is for the one server with hints of changes;
// backends are in a set.
func follow(ctx context.Context, every time.Duration, hints <-chan struct{}, ask func(context.Context) error) {
	hurry := time.Duration(0)
	failures := 0
	for {
		begun := time.Now()
		err := ask(ctx)
		rest := min(max(leastRest, restFactor*time.Since(begun)), every)
		wait := every
		switch {
		case err != nil:
			failures++
			wait = min(firstAgain<<min(failures-1, 10), every)
		case hurry > 0:
			wait, failures = min(hurry, every), 0
			if hurry *= 2; hurry > lastHurry {
				hurry = 0
			}
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
			hurry = firstHurry
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
