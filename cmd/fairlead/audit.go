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

// auditOptions are the flags of the audit log, spelled and meant as kube-apiserver's.
type auditOptions struct {
	policy, path, format        string
	maxAge, maxBackups, maxSize int
	compress, local             bool
}

func (o *auditOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.policy, "audit-policy-file", "", "Policy of audit.k8s.io: which requests are recorded, and how much of them. Empty: none.")
	fs.StringVar(&o.path, "audit-log-path", "", "File of the audit log; - is standard output. Empty: none.")
	fs.IntVar(&o.maxAge, "audit-log-maxage", 0, "Days for which old audit log files are kept. 0: they are not removed because of their age.")
	fs.IntVar(&o.maxBackups, "audit-log-maxbackup", 0, "Number of old audit log files that are kept. 0: all.")
	fs.IntVar(&o.maxSize, "audit-log-maxsize", 0, "Megabytes after which a new audit log file is begun. 0: never; rotate it from outside, by copying and truncating.")
	fs.BoolVar(&o.compress, "audit-log-compress", false, "Compress old audit log files with gzip.")
	fs.StringVar(&o.format, "audit-log-format", "json", "Format of the audit log: json, or legacy for a line of text per event.")
	fs.BoolVar(&o.local, "audit-local-requests", false, "Record requests to the local apiserver too. False: it records them itself, with the same Audit-ID, and knows whose token it was.")
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
		return nil
	}
	rules, err := policy.LoadPolicyFromFile(o.policy)
	if err != nil {
		return cli.Usage(fmt.Errorf("--audit-policy-file: %w", err))
	}
	if d.auditFile, err = o.open(); err != nil {
		return err
	}
	d.audit, err = audit.New(audit.Config{
		Policy: policy.NewPolicyRuleEvaluator(rules), Writer: d.auditFile, Format: o.format, Local: o.local, Logger: d.log, Metrics: d.metrics,
	})
	return err
}

// open opens the file as kube-apiserver does: its folder is made, and only its owner can read it.
func (o *auditOptions) open() (io.WriteCloser, error) {
	if o.path == "-" {
		return nopCloser{os.Stdout}, nil
	}
	if err := os.MkdirAll(filepath.Dir(o.path), 0o700); err != nil {
		return nil, fmt.Errorf("making the audit log's folder: %w", err)
	}
	// Also before rotating: what cannot be written is a mistake to be told of at the start.
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	if o.maxSize == 0 {
		return &wholeLines{WriteCloser: f}, nil
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("opening audit log: %w", err)
	}
	return &wholeLines{WriteCloser: &lumberjack.Logger{Filename: o.path, MaxAge: o.maxAge, MaxBackups: o.maxBackups, MaxSize: o.maxSize, Compress: o.compress}}, nil
}
