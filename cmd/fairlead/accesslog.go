package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
)

// accessOptions are the flags of the access log.
type accessOptions struct {
	path   string
	sample float64
}

func (o *accessOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.path, "access-log", "", "File that receives one line of JSON per request; \"-\" is standard output. Empty: no access log.")
	fs.Float64Var(&o.sample, "access-log-sample", 1, "Fraction of requests that are logged, from 0 to 1. Requests answered with 400 or above are always logged.")
}

func (o *accessOptions) validate(fault func(string, ...any)) {
	if o.sample < 0 || o.sample > 1 {
		fault("--access-log-sample %v is not between 0 and 1", o.sample)
	}
}

// records are the logs and traces to which requests are written.
type records struct {
	accessLog *accesslog.Log // nil means no access log
	taps      accesslog.Taps
	audit     *audit.Log // nil means no audit log
	// closing ends what is recorded: the files, and the spans that are not sent yet.
	closing []func() error
}

// closeRecords closes the logs after their loops have ended, and sends the last spans.
func (r *records) closeRecords() error {
	var faults []error
	for _, end := range r.closing {
		faults = append(faults, end())
	}
	return errors.Join(faults...)
}

// open opens a log, to which it appends, until closeRecords. "-" is standard output, which stays
// open.
func (r *records) open(what, path string) (io.Writer, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	// 0o600: the log names users and what they read.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening %s log: %w", what, err)
	}
	r.closing = append(r.closing, f.Close)
	return &wholeLines{Writer: f}, nil
}

func (d *door) makeAccessLog() error {
	if d.o.access.path == "" {
		return nil
	}
	w, err := d.open("access", d.o.access.path)
	if err != nil {
		return err
	}
	d.accessLog, err = accesslog.New(accesslog.Config{
		Writer: w, Skip: 1 - d.o.access.sample, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return fmt.Errorf("making the access log: %w", err)
	}
	d.loop("access log", d.accessLog.Run)
	return nil
}

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
