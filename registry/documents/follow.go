package documents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
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

const (
	// firstRewatch and lastRewatch are the pauses between watches, doubling. A watcher also asks
	// from time to time, so little is lost meanwhile.
	firstRewatch = time.Second
	lastRewatch  = 30 * time.Second
	// metadataOnly saves sending the objects themselves: the schemas of a thousand custom resources
	// are tens of megabytes.
	metadataOnly = ";g=meta.k8s.io;v=v1,application/json"
)

// Watch calls changed whenever something in a collection has changed, or may have. It parses and
// keeps no objects. do sends a request that may last for hours. Watch returns when ctx ends. If the
// collection cannot be watched, it tries again and again: only the hints are missing meanwhile.
func Watch(ctx context.Context, do Do, path string, changed func()) error {
	pause := firstRewatch
	for {
		begun := time.Now()
		if err := watchOnce(ctx, do, path, changed); err == nil || time.Since(begun) > lastRewatch {
			pause = firstRewatch // it has ended normally
		}
		if !sleep(ctx, time.Duration(float64(pause)*(0.8+0.4*rand.Float64()))) { //nolint:gosec // jitter
			return ctx.Err()
		}
		pause = min(2*pause, lastRewatch)
	}
}

// watchOnce watches until the server ends it.
func watchOnce(ctx context.Context, do Do, path string, changed func()) error {
	// Begin now: without a resourceVersion the server would first send all objects.
	a, err := Get(ctx, do, Question{Path: path, Query: "limit=1", Accept: "application/json;as=PartialObjectMetadataList" + metadataOnly})
	if err != nil {
		return err
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(a.Body, &list); err != nil || a.Status != http.StatusOK || list.Metadata.ResourceVersion == "" {
		return errors.Join(err, fmt.Errorf("listing %s: %d %s", path, a.Status, http.StatusText(a.Status)))
	}
	changed() // for changes before the watch began
	q := Question{Path: path, Query: "watch=true&resourceVersion=" + list.Metadata.ResourceVersion, Accept: "application/json;as=PartialObjectMetadata" + metadataOnly}
	res, err := do(ctx, newRequest(ctx, q))
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("watching %s: %d %s", path, res.StatusCode, http.StatusText(res.StatusCode))
	}
	for b := make([]byte, 4<<10); ; {
		n, err := res.Body.Read(b)
		if n > 0 {
			changed()
		}
		if err != nil {
			return nil //nolint:nilerr // the next watch begins with a call of changed
		}
	}
}
