package check

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Journal is the log of the run: a JSON object per line, in order. A nil Journal writes nothing.
type Journal struct {
	// Out is written to by one goroutine at a time.
	Out io.Writer

	mu    sync.Mutex // guards the fields below, and writing to Out
	began time.Time  // of the first entry
	err   error      // the first error
}

// Write logs an event with pairs of names and values.
func (j *Journal) Write(event string, pairs ...any) {
	if j == nil {
		return
	}
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.began.IsZero() {
		j.began = now
	}
	line := map[string]any{"at": now.Format("15:04:05.000"), "second": now.Sub(j.began).Seconds(), "event": event}
	for i := 0; i+1 < len(pairs); i += 2 {
		if name, ok := pairs[i].(string); ok {
			line[name] = pairs[i+1]
		}
	}
	data, err := json.Marshal(line)
	if err == nil && j.err == nil {
		_, err = j.Out.Write(append(data, '\n'))
	}
	if j.err == nil {
		j.err = err
	}
}

// Err returns the first error in writing, or nil.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}
