// Package logbook has logs that several goroutines write while a test reads them: as a whole, or line by line.
package logbook

import (
	"strings"
	"sync"
)

// Book is a log, an io.Writer and a fmt.Stringer for any goroutine. The zero value is empty.
type Book struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write implements io.Writer.
func (b *Book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns the whole log.
func (b *Book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines is a log, an io.Writer that waits until each line is received or has room.
type Lines chan string

// Write implements io.Writer.
func (l Lines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l <- line
	}
	return len(p), nil
}
