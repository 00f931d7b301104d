package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/component-base/tracing"

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
	access    io.WriteCloser // nil means no access log
	accessLog *accesslog.Log // nil means no access log
	taps      accesslog.Taps
	auditFile io.WriteCloser // nil means no audit log
	audit     *audit.Log     // nil means no audit log
	// spans receives spans. Nil means no tracing.
	spans tracing.TracerProvider
}

// makeLogs opens the access log and the audit log.
func (d *door) makeLogs() error {
	if err := d.makeAccessLog(); err != nil {
		return err
	}
	return d.makeAudit()
}

// closeLogs closes the logs after their loops have ended, and sends the last spans.
func (d *door) closeLogs() error {
	var faults []error
	for _, c := range []io.Closer{d.access, d.auditFile} {
		if c != nil {
			faults = append(faults, c.Close())
		}
	}
	return errors.Join(append(faults, d.flushSpans())...)
}

func (d *door) makeAccessLog() (err error) {
	if d.access, err = openAccessLog(d.o.access.path); err != nil || d.access == nil {
		return err
	}
	d.accessLog, err = accesslog.New(accesslog.Config{Writer: d.access, Skip: 1 - d.o.access.sample, Logger: d.log, Metrics: d.metrics})
	if err != nil {
		return fmt.Errorf("making the access log: %w", err)
	}
	return nil
}

// openAccessLog opens the access log, which the caller closes. Nil means there is none.
func openAccessLog(path string) (io.WriteCloser, error) {
	switch path {
	case "":
		return nil, nil
	case "-":
		return nopCloser{os.Stdout}, nil
	}
	// 0o600: the log names users and what they read.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening access log: %w", err)
	}
	return &wholeLines{WriteCloser: f}, nil
}

// nopCloser keeps standard output open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
