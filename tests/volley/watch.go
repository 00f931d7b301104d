package volley

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
)

// Watch keeps one watch open at a time, without client-go, so that it sees how each body ends.
type Watch struct {
	// Client requests URL.
	Client *http.Client
	URL    string

	events atomic.Int64
	mu     sync.Mutex // guards ends
	ends   []End
}

// End is how a watch ended.
type End struct {
	// Rest is the length of an unfinished event.
	Rest int
	// Err is nil if the body ended cleanly between two events.
	Err error
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for {
		rest, err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.ends = append(w.ends, End{rest, err})
		w.mu.Unlock()
		select {
		case <-time.After(100 * time.Millisecond): // a client's initial back-off
		case <-ctx.Done():
		}
	}
}

func (w *Watch) once(ctx context.Context) (rest int, err error) {
	res, err := ask.Open(ctx, w.Client, w.URL, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	for body := bufio.NewReader(res.Body); ; w.events.Add(1) {
		line, err := body.ReadBytes('\n')
		if rest := len(bytes.TrimSpace(line)); errors.Is(err, io.EOF) && rest == 0 {
			return 0, nil
		} else if err != nil {
			return rest, err
		}
	}
}

// Events returns the number of events so far.
func (w *Watch) Events() int64 { return w.events.Load() }

// Ends returns how watches have ended since the last call.
func (w *Watch) Ends() []End {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.ends
	w.ends = nil
	return list
}
