package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apiserver/pkg/audit/policy"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
)

// auditOptions are the flags of the audit log. Names, meanings and defaults are kube-apiserver's (NewAuditOptions).
type auditOptions struct {
	policy, path, format        string
	maxAge, maxBackups, maxSize int
	compress, local             bool
}

func (o *options) addRecordFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.accessLog, "access-log", "",
		"File that receives one line of JSON per request; \"-\" is standard output. Empty: no access log.")
	fs.Float64Var(&o.accessSample, "access-log-sample", 1,
		"Fraction of requests that are logged, from 0 to 1. Requests answered with 400 or above are always logged.")
	fs.StringVar(&o.audit.policy, "audit-policy-file", "",
		"Audit policy (audit.k8s.io): which requests are recorded, and in which detail. Empty: none.")
	fs.StringVar(&o.audit.path, "audit-log-path", "",
		"File of the audit log; \"-\" is standard output. Empty: no audit log.")
	fs.IntVar(&o.audit.maxAge, "audit-log-maxage", 366,
		"Days to keep old audit log files. 0: files are not removed because of their age.")
	fs.IntVar(&o.audit.maxBackups, "audit-log-maxbackup", 100, "Number of old audit log files to keep. 0: all.")
	fs.IntVar(&o.audit.maxSize, "audit-log-maxsize", 100,
		"Size in megabytes at which the audit log is rotated. 0: never; rotate it from outside, by copy and truncate.")
	fs.BoolVar(&o.audit.compress, "audit-log-compress", false, "Compress rotated audit log files with gzip.")
	fs.StringVar(&o.audit.format, "audit-log-format", "json",
		"Format of the audit log: json, or legacy (one line of text per event).")
	fs.BoolVar(&o.audit.local, "audit-local-requests", false, "Also record requests to the local apiserver. False: "+
		"they are only in the local apiserver's own audit log, under the same Audit-ID.")
	fs.StringVar(&o.tracing, "tracing-config-file", "", "TracingConfiguration (apiserver.config.k8s.io): "+
		"where spans are sent, and the sampling rate. Empty: no tracing.")
}

func (o *auditOptions) validate(f *cli.Faults) {
	f.Readable("--audit-policy-file", o.policy)
	f.If(o.path != "" && o.policy == "",
		"--audit-log-path needs --audit-policy-file: without a policy nothing is recorded")
	f.If(o.path == "" && o.policy != "", "--audit-policy-file needs --audit-log-path")
	f.If(min(o.maxAge, o.maxBackups, o.maxSize) < 0 || o.maxAge > 36500, "--audit-log-maxage, --audit-log-maxbackup "+
		"and --audit-log-maxsize cannot be negative, nor an age above 36500 days") // lumberjack's sum overflows
	f.If(o.format != "json" && o.format != "legacy", "--audit-log-format %q is neither json nor legacy", o.format)
}

func (p *process) makeAudit() error {
	o := &p.o.audit
	if o.path == "" {
		if !p.o.alone() {
			p.log.Warn("requests to extension servers are in no audit log: " +
				"kube-apiserver does not see them (--audit-policy-file, --audit-log-path)")
		}
		return nil
	}
	rules, err := policy.LoadPolicyFromFile(o.policy)
	if err != nil {
		return cli.Usage(fmt.Errorf("--audit-policy-file: %w", err))
	}
	if err := os.MkdirAll(filepath.Dir(o.path), 0o700); err != nil { // as kube-apiserver: only the owner can read it
		return fmt.Errorf("making the audit log's folder: %w", err)
	}
	// Also before lumberjack does: an unwritable file is reported at the start.
	if p.auditLines, err = p.open("audit", o.path); err != nil {
		return err
	}
	if o.maxSize > 0 && o.path != "-" {
		rotated := &lumberjack.Logger{Filename: o.path, MaxAge: o.maxAge, MaxBackups: o.maxBackups, MaxSize: o.maxSize}
		rotated.Compress = o.compress
		last := len(p.closing) - 1
		_ = p.closing[last]() // open, it would keep the space of the first file until the end, also once deleted
		p.closing[last], p.auditLines.Writer = rotated.Close, rotated
	}
	p.audit = audit.New(audit.Config{
		Policy: policy.NewPolicyRuleEvaluator(rules), Format: o.format, Sinks: p.sinks,
		Writer: printable.JSON(p.auditLines), // the legacy format has quoted it
	})
	p.loops["audit log"] = p.audit.Run
	return nil
}

type records struct {
	accessLog               *accesslog.Log // nil means no access log
	taps                    accesslog.Taps
	audit                   *audit.Log     // nil means no audit log
	auditLines, accessLines *wholeLines    // what the logs write to
	closing                 []func() error // ends what is recorded: the files, and the spans that are not sent yet
}

// closeRecords closes the logs after their loops have ended, and sends the last spans.
func (r *records) closeRecords() (err error) {
	for _, end := range r.closing {
		err = errors.Join(err, end())
	}
	return err
}

// open opens a log for appending, until closeRecords. "-" is standard output, which stays open.
func (p *process) open(what, path string) (*wholeLines, error) {
	lines := &wholeLines{Writer: os.Stdout}
	if path != "-" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) // it names users and what they read
		if err != nil {
			return nil, fmt.Errorf("opening %s log: %w", what, err)
		}
		p.closing, lines.Writer = append(p.closing, f.Close), f
	}
	p.more = append(p.more, lastOf(what+"-log", &lines.ends, "the "+what+" log cannot be written: ",
		"check its disk: what could not be written is lost"))
	return lines, nil
}

func (p *process) makeAccessLog() (err error) {
	if p.o.accessLog == "" {
		return nil
	}
	if p.accessLines, err = p.open("access", p.o.accessLog); err != nil {
		return err
	}
	p.accessLog = accesslog.New(accesslog.Config{Writer: p.accessLines, Skip: 1 - p.o.accessSample, Sinks: p.sinks})
	p.loops["access log"] = p.accessLog.Run
	return nil
}

const hangs = 10 * time.Second // a write that takes longer counts as failed, as to a file server that is away

// wholeLines starts a new line after a write that failed in the middle of a line, for example on a full disk. Otherwise
// the next line would be lost together with the partial one. It notes how its writes end, and that one hangs.
type wholeLines struct {
	io.Writer
	cut  bool
	ends needs.Outcome
}

func (w *wholeLines) Write(p []byte) (n int, err error) {
	late := time.AfterFunc(hangs, func() { w.ends.Note(fmt.Errorf("a write has not ended in %v", hangs)) })
	defer func() { late.Stop(); w.ends.Note(err) }()
	if w.cut {
		if _, err := w.Writer.Write([]byte("\n")); err != nil {
			return 0, err //nolint:wrapcheck // this is the writer
		}
		w.cut = false
	}
	n, err = w.Writer.Write(p)
	w.cut = err != nil && n > 0 && n <= len(p) && p[n-1] != '\n'
	return n, err //nolint:wrapcheck // this is the writer
}
