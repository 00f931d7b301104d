package main

import "io"

// wholeLines starts a new line after a write that failed in the middle of a line, for example on a
// full disk. Otherwise the next line would be lost together with the partial one.
type wholeLines struct {
	io.Writer
	cut bool
}

func (w *wholeLines) Write(p []byte) (int, error) {
	if w.cut {
		if _, err := w.Writer.Write([]byte("\n")); err != nil {
			return 0, err //nolint:wrapcheck // this is the writer
		}
		w.cut = false
	}
	n, err := w.Writer.Write(p)
	w.cut = err != nil && n > 0 && n <= len(p) && p[n-1] != '\n'
	return n, err //nolint:wrapcheck // this is the writer
}
