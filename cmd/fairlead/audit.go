package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apiserver/pkg/audit/policy"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
)

// auditOptions are the flags of the audit log. Names and meanings are kube-apiserver's.
type auditOptions struct {
	policy, path, format        string
	maxAge, maxBackups, maxSize int
	compress, local             bool
}

func (o *auditOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.policy, "audit-policy-file", "", "Audit policy (audit.k8s.io): which requests are recorded, and in which detail. Empty: none.")
	fs.StringVar(&o.path, "audit-log-path", "", "File of the audit log; \"-\" is standard output. Empty: no audit log.")
	fs.IntVar(&o.maxAge, "audit-log-maxage", 0, "Days to keep old audit log files. 0: files are not removed because of their age.")
	fs.IntVar(&o.maxBackups, "audit-log-maxbackup", 0, "Number of old audit log files to keep. 0: all.")
	fs.IntVar(&o.maxSize, "audit-log-maxsize", 0, "Size in megabytes at which the audit log is rotated. 0: never; rotate it from outside, by copy and truncate.")
	fs.BoolVar(&o.compress, "audit-log-compress", false, "Compress rotated audit log files with gzip.")
	fs.StringVar(&o.format, "audit-log-format", "json", "Format of the audit log: json, or legacy (one line of text per event).")
	fs.BoolVar(&o.local, "audit-local-requests", false, "Also record requests to the local apiserver. False: they are only in the local apiserver's own audit log, under the same Audit-ID.")
}

func (o *auditOptions) validate(fault func(string, ...any)) {
	checkReadable(fault, "--audit-policy-file", o.policy)
	if o.path != "" && o.policy == "" {
		fault("--audit-log-path needs --audit-policy-file: without a policy nothing is recorded")
	}
	if o.path == "" && o.policy != "" {
		fault("--audit-policy-file needs --audit-log-path")
	}
	if o.maxAge < 0 || o.maxBackups < 0 || o.maxSize < 0 {
		fault("--audit-log-maxage, --audit-log-maxbackup and --audit-log-maxsize cannot be negative")
	}
	if o.format != "json" && o.format != "legacy" {
		fault("--audit-log-format %q is neither json nor legacy", o.format)
	}
}

func (d *door) makeAudit() error {
	o := &d.o.audit
	if o.path == "" {
		if !d.o.alone() {
			d.log.Warn("requests to extension servers are in no audit log: kube-apiserver does not see them (--audit-policy-file, --audit-log-path)")
		}
		return nil
	}
	rules, err := policy.LoadPolicyFromFile(o.policy)
	if err != nil {
		return cli.Usage(fmt.Errorf("--audit-policy-file: %w", err))
	}
	w, err := d.openAudit()
	if err != nil {
		return err
	}
	d.audit, err = audit.New(audit.Config{
		Policy: policy.NewPolicyRuleEvaluator(rules), Writer: w, Format: o.format, Local: o.local,
		Logger: d.log, Metrics: d.metrics,
	})
	d.loop("audit log", d.audit.Run)
	return err
}

// openAudit opens the file as kube-apiserver does: it makes the folder, and only the owner can read
// it.
func (d *door) openAudit() (io.Writer, error) {
	o := &d.o.audit
	if err := os.MkdirAll(filepath.Dir(o.path), 0o700); err != nil {
		return nil, fmt.Errorf("making the audit log's folder: %w", err)
	}
	// Also before lumberjack opens it: an unwritable file must be reported at the start.
	w, err := d.open("audit", o.path)
	if err != nil || o.maxSize == 0 || o.path == "-" {
		return w, err
	}
	rotated := &lumberjack.Logger{
		Filename: o.path, MaxAge: o.maxAge, MaxBackups: o.maxBackups, MaxSize: o.maxSize, Compress: o.compress,
	}
	d.closing = append(d.closing, rotated.Close)
	return &wholeLines{Writer: rotated}, nil
}
