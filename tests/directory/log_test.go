//go:build e2e

package directory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// logbook is a log as it grows.
type logbook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// line is one line of the log.
type line map[string]any

func (l *logbook) lines() []line {
	var all []line
	for text := range strings.Lines(l.String()) {
		var one line
		if json.Unmarshal([]byte(text), &one) == nil {
			all = append(all, one)
		}
	}
	return all
}

// find returns the first line with a message and the given values.
func (l *logbook) find(message string, pairs ...any) line {
	for _, one := range l.lines() {
		ok := one["msg"] == message
		for i := 0; i+1 < len(pairs); i += 2 {
			ok = ok && fmt.Sprint(one[fmt.Sprint(pairs[i])]) == fmt.Sprint(pairs[i+1])
		}
		if ok {
			return one
		}
	}
	return nil
}

// at is when a line was logged.
func (l line) at(t *testing.T) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(l["time"]))
	if err != nil {
		t.Fatalf("line %v: %v", l, err)
	}
	return at
}
