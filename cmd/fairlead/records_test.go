package main

import (
	"bytes"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	requests "github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/otlp"
)

// auditDoor returns a door with a policy that records every request.
func auditDoor(t *testing.T, flags auditOptions) *door {
	t.Helper()
	flags.policy = writeFile(t, filepath.Join(t.TempDir(), "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	return &door{o: &options{audit: flags}, log: slog.New(slog.DiscardHandler), metrics: prometheus.NewRegistry()}
}

// The audit log is rotated as the flags say, and only its owner can read the files.
func TestAuditFiles(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags auditOptions
		files int
	}{
		{"one file", auditOptions{format: "json"}, 1},
		{"rotated", auditOptions{format: "json", maxSize: 1, maxBackups: 1}, 2},
		{"text", auditOptions{format: "legacy"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.flags.path = filepath.Join(dir, "logs", "audit.log")
			d := auditDoor(t, tc.flags)
			must.Do(t, d.makeAudit())
			stop := must.Run(t, d.audit.Run)
			for range 1800 { // less than 2 MiB, and fits into the queue
				d.audit.Open(&audit.Request{Attributes: authorizer.AttributesRecord{Verb: "get", Path: "/x"}, Path: "/x", Received: time.Now(), UserAgent: strings.Repeat("a", 500)}).Received()
			}
			stop()
			must.Do(t, d.closeLogs())
			if info, err := os.Stat(filepath.Join(dir, "logs")); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("their folder: %v, %v", info.Mode(), err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "logs", "*"))
			if err != nil || len(files) != tc.files {
				t.Fatalf("files %q, %v", files, err)
			}
			lines := 0
			for _, f := range files {
				data := must.Get(os.ReadFile(f))(t)
				if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v", f, info.Mode(), err)
				}
				lines += strings.Count(string(data), "\n")
			}
			if lines != 1800 {
				t.Errorf("%d lines", lines)
			}
		})
	}
}

func TestAuditPolicyFaults(t *testing.T) {
	for _, policy := range []string{"", "rules: []", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]"} {
		o := &options{audit: auditOptions{path: "-", format: "json", policy: writeFile(t, filepath.Join(t.TempDir(), "policy"), policy)}}
		err := (&door{o: o}).makeAudit()
		if !cli.IsUsage(err) || !strings.HasPrefix(err.Error(), "--audit-policy-file: ") {
			t.Errorf("%q: %v", policy, err)
		}
	}
}

// An audit log that cannot be opened ends the start: requests would go unaudited.
func TestAuditFileFaults(t *testing.T) {
	d := auditDoor(t, auditOptions{path: t.TempDir(), format: "json"})
	if err := d.makeAudit(); err == nil || !strings.HasPrefix(err.Error(), "opening audit log: ") || d.audit != nil {
		t.Errorf("a folder as the audit log: %v", err)
	}
	d.o.audit.path = "-"
	must.Do(t, d.makeAudit())
	if d.makeAudit() == nil {
		t.Error("a second audit log with the same metrics is no error")
	}
}

// Without an audit log, a warning says that requests to extension servers are not audited.
func TestAuditIsMissed(t *testing.T) {
	var log bytes.Buffer
	d := &door{o: &options{}, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: prometheus.NewRegistry()}
	if err := d.makeAudit(); err != nil || d.audit != nil || !strings.Contains(log.String(), "level=WARN msg=\"requests to extension servers are in no audit log") {
		t.Errorf("error %v, log %s", err, log.String())
	}
}

// The access log is written to its file, with the fraction of requests that the flag asks for, and
// the loss of lines is logged.
func TestAccessLogOfFlags(t *testing.T) {
	for _, tt := range []struct {
		sample float64
		lines  int // of 100 requests with 200
	}{{0, 0}, {1, 100}} {
		file := filepath.Join(t.TempDir(), "access.log")
		var log bytes.Buffer
		d := &door{o: &options{access: accessOptions{path: file, sample: tt.sample}}, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: prometheus.NewRegistry()}
		must.Do(t, d.makeAccessLog())
		stop := must.Run(t, d.accessLog.Run)
		for range 100 {
			if d.accessLog.Wants(http.StatusOK) {
				d.accessLog.Add(0, &accesslog.Line{Status: http.StatusOK})
			}
		}
		stop()
		if text := must.Get(os.ReadFile(file))(t); bytes.Count(text, []byte("\n")) != tt.lines {
			t.Errorf("sample %v: %d lines, want %d", tt.sample, bytes.Count(text, []byte("\n")), tt.lines)
		}
		must.Do(t, d.access.Close()) // writing fails from here on
		stop = must.Run(t, d.accessLog.Run)
		d.accessLog.Add(0, &accesslog.Line{Status: http.StatusOK})
		stop()
		if !strings.Contains(log.String(), "writing access log") {
			t.Errorf("a lost line is not logged: %q", log.String())
		}
	}
}

func tracingDoor(t *testing.T, text string) *door {
	t.Helper()
	return &door{o: &options{tracing: writeFile(t, filepath.Join(t.TempDir(), "tracing.yaml"), text)}, log: slog.New(slog.DiscardHandler)}
}

// Spans that are still queued are sent when the process ends.
func TestTracingConfiguration(t *testing.T) {
	c := must.Get(otlp.Start(t.Context()))(t)
	defer c.Close()
	d := tracingDoor(t, "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: "+c.Address+"\nsamplingRatePerMillion: 1000000\n")
	tracer := must.Get(d.makeTracer())(t)
	began := time.Now()
	tracer.Start(&requests.Request{Method: "GET", Path: "/x", Name: "GET", Began: began}).End(&requests.Outcome{Status: 503, Err: "gone", Took: time.Second, Retries: 2})
	must.Do(t, d.closeLogs())
	spans := c.Spans()
	if len(spans) != 1 {
		t.Fatalf("%d spans", len(spans))
	}
	s := spans[0]
	if s.Error != "gone" || s.Resource["service.name"] != "fairlead" || s.Resource["service.instance.id"] == "" || s.Attributes["fairlead.retries"] != "2" {
		t.Errorf("%+v", s)
	}
}

// A missing collector delays neither the start nor the end of the process.
func TestTracingWithoutCollector(t *testing.T) {
	d := tracingDoor(t, "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: 127.0.0.1:1\nsamplingRatePerMillion: 1000000\n")
	began := time.Now()
	tracer := must.Get(d.makeTracer())(t)
	tracer.Start(&requests.Request{Method: "GET", Name: "GET", Began: began}).End(&requests.Outcome{Status: 200})
	if err := d.closeLogs(); err != nil || time.Since(began) > flushTime+5*time.Second {
		t.Errorf("ended after %s: %v", time.Since(began), err)
	}
}

func TestTracingFaults(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"kind: Other", "reading"},
		{"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoints: x\n", "unknown field"},
		{"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: -1\n", "samplingRatePerMillion"},
	} {
		if _, err := tracingDoor(t, tc.text).makeTracer(); err == nil || !strings.HasPrefix(err.Error(), "--tracing-config-file: ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v", tc.text, err)
		}
	}
}
