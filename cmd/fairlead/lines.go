package main

import "io"

// wholeLines begins a new line after a write that failed in the middle of one, as it does when a disk is full: otherwise the first line that can be written again
// would be lost with the one that was cut.
type wholeLines struct {
	io.WriteCloser
	cut bool
}

func (w *wholeLines) Write(p []byte) (int, error) {
	if w.cut {
		if _, err := w.WriteCloser.Write([]byte("\n")); err != nil {
			return 0, err //nolint:wrapcheck // this is the writer
		}
		w.cut = false
	}
	n, err := w.WriteCloser.Write(p)
	w.cut = err != nil && n > 0 && n <= len(p) && p[n-1] != '\n'
	return n, err //nolint:wrapcheck // this is the writer
}
