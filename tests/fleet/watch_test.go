//go:build e2e

package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
)

// watcher watches the objects without client-go, so that it sees how each body ends.
type watcher struct {
	client *http.Client
	url    string

	// version is the resourceVersion of the last event.
	version string
	// events and ends count what it has received.
	events, ends int
	// errs are ends by an error, but between events.
	errs []string
	// cuts are ends in the middle of an event.
	cuts []string
}

type watchers struct {
	all  []*watcher
	stop context.CancelFunc
	done sync.WaitGroup
}

func (w *watchers) start(ctx context.Context) {
	ctx, w.stop = context.WithCancel(ctx)
	for _, one := range w.all {
		w.done.Go(func() { one.run(ctx) }) // ends with ctx
	}
}

// end stops the watches and fails the test for events that were cut.
func (w *watchers) end(t *testing.T) {
	t.Helper()
	w.stop()
	w.done.Wait()
	events, ends := 0, 0
	var errs, cuts []string
	for _, one := range w.all {
		events, ends = events+one.events, ends+one.ends
		errs, cuts = append(errs, one.errs...), append(cuts, one.cuts...)
		if one.events == 0 {
			t.Errorf("a watch of %s received no events", one.url)
		}
	}
	t.Logf("%d watches: %d events, %d ends, %d of them by an error, %d in the middle of an event", len(w.all), events, ends, len(errs), len(cuts))
	if len(errs) > 0 {
		t.Logf("ends by an error, such as %s", errs[0])
	}
	if len(cuts) > 0 {
		t.Errorf("%d watches were cut in the middle of an event, such as %s", len(cuts), cuts[0])
	}
}

func (w *watcher) run(ctx context.Context) {
	w.version, w.events, w.ends, w.errs, w.cuts = "0", 0, 0, nil, nil
	again := time.NewTicker(100 * time.Millisecond) // a client's initial back-off
	defer again.Stop()
	for ctx.Err() == nil {
		rest, err := w.follow(ctx)
		if ctx.Err() != nil {
			return // ended by the test
		}
		w.ends++
		at := time.Now().Format("15:04:05.000")
		switch {
		case rest > 0:
			w.cuts = append(w.cuts, fmt.Sprintf("%d bytes of an event at %s: %v", rest, at, err))
		case !errors.Is(err, io.EOF):
			w.errs = append(w.errs, fmt.Sprintf("%s: %v", at, err))
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// follow watches until the body ends. It returns the length of an unfinished event, and how the
// body ended.
func (w *watcher) follow(ctx context.Context) (rest int, err error) {
	res, err := ask.Open(ctx, w.client, w.url+path+"?watch=1&resourceVersion="+w.version, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	body := bufio.NewReader(res.Body)
	for {
		line, err := body.ReadString('\n')
		if err != nil {
			return len(line), err
		}
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := json.NewDecoder(strings.NewReader(line)).Decode(&event); err != nil {
			return len(line), err
		}
		if event.Type == "ERROR" { // the version is too old: start again
			w.version = "0"
			return 0, io.EOF
		}
		w.version = event.Object.Metadata.ResourceVersion
		w.events++
	}
}
