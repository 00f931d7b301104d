package main

import (
	"fmt"
	"io"
	"os"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
)

func (d *door) makeAccessLog() (err error) {
	if d.access, err = openAccessLog(d.o.accessLog); err != nil || d.access == nil {
		return err
	}
	if d.accessLog, err = accesslog.New(accesslog.Config{Writer: d.access, Logger: d.log, Metrics: d.metrics}); err != nil {
		return fmt.Errorf("making the access log: %w", err)
	}
	return nil
}

// openAccessLog opens what the access log is written to. Nil: there is none. The caller closes it.
func openAccessLog(path string) (io.WriteCloser, error) {
	switch path {
	case "":
		return nil, nil
	case "-":
		return nopCloser{os.Stdout}, nil
	}
	// 0o600: it names users and what they read.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening access log: %w", err)
	}
	return f, nil
}

// nopCloser leaves standard output open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
