package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	requests "github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/otlp"
)

const policyHead, tracingHead = "apiVersion: audit.k8s.io/v1\nkind: Policy\n", "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"

// recordsDoor is a door before its records are made, with the text of a policy or of a
// TracingConfiguration, and its log.
func recordsDoor(t *testing.T, o options, text string) (*process, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	file := writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), text)
	if o.audit.path != "" {
		o.audit.policy = file
	} else if text != "" {
		o.tracing = file
	}
	return newProcess(&o, slog.New(slog.NewTextHandler(&log, nil))), &log
}

// The audit log is rotated as the flags say, unset as kube-apiserver's, and only its owner can read the files.
func TestAuditFiles(t *testing.T) {
	unset := &options{}
	flagSet(unset)
	check.Same(t, [3]int{366, 100, 100}, [3]int{unset.audit.maxAge, unset.audit.maxBackups, unset.audit.maxSize}, "days, files and megabytes, unset")
	for files, flags := range map[string]auditOptions{
		"audit.log": {format: "json"}, "audit-*.log audit.log": {format: "json", maxSize: 1, maxBackups: 1}, "audit.txt": {format: "legacy"},
	} {
		all := strings.Fields(files)
		dir := filepath.Join(t.TempDir(), "logs")
		flags.path = filepath.Join(dir, all[len(all)-1])
		d, _ := recordsDoor(t, options{audit: flags}, policyHead+"rules: [{level: Metadata}]\n")
		must.Do(t, d.makeAudit())
		stop := must.Run(t, d.audit.Run)
		for range 1800 { // less than 2 MiB, and fits into the queue
			d.audit.Open(&audit.Request{Attributes: authorizer.AttributesRecord{Verb: "get", Path: "/x"}, Path: "/x", Received: time.Now(), UserAgent: strings.Repeat("a", 500) + "\u009b31m"}).Received()
		}
		stop()
		open := 0
		for _, e := range must.Get(os.ReadDir("/proc/self/fd"))(t) {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, dir+"/") {
				open++
			}
		}
		check.Same(t, 1, open, "%s: open files, the space of a rotated one would stay in use", files)
		must.Do(t, d.closeRecords())
		check.Same(t, 0o700, must.Get(os.Stat(dir))(t).Mode().Perm(), "mode of the folder")
		entries, lines := must.Get(os.ReadDir(dir))(t), 0
		check.Same(t, len(all), len(entries), "%s: files", files)
		for i, e := range entries {
			ok, err := filepath.Match(all[i], e.Name())
			check.Same(t, true, ok && err == nil, "%s: there is %s", files, e.Name())
			check.Same(t, 0o600, must.Get(e.Info())(t).Mode(), "mode of %s", e.Name())
			text := must.Get(os.ReadFile(filepath.Join(dir, e.Name())))(t)
			lines += bytes.Count(text, []byte("\n"))
			check.Same(t, false, bytes.Contains(text, []byte("\u009b")), "%s: a client's escape sequence reaches a terminal", e.Name())
		}
		check.Same(t, 1800, lines, "%s: lines", files)
	}
}

// Records that cannot be made end the start: requests would go unrecorded. Mistakes in configuration are usage errors.
func TestRecordFaults(t *testing.T) {
	audited := options{audit: auditOptions{path: "-", format: "json"}}
	for _, tc := range []struct {
		o          options
		text, want string
	}{
		{audited, "", "--audit-policy-file: "},
		{audited, "rules: []", "--audit-policy-file: "},
		{audited, policyHead + "rules: [{level: Everything}]", "--audit-policy-file: "},
		{options{audit: auditOptions{path: t.TempDir(), format: "json"}}, policyHead + "rules: [{level: Metadata}]\n", "opening audit log: "},
		{options{}, "kind: Other", "--tracing-config-file: reading"},
		{options{}, tracingHead + "endpoints: x\n", "unknown field"},
		{options{}, tracingHead + "samplingRatePerMillion: -1\n", "samplingRatePerMillion"},
	} {
		d, _ := recordsDoor(t, tc.o, tc.text)
		err := d.makeAudit()
		if err == nil {
			_, err = d.makeTracer()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.HasPrefix(err.Error(), "--") != cli.IsUsage(err) || d.audit != nil {
			t.Errorf("%q: %v, want %s", tc.text, err, tc.want)
		}
	}
}

// Without an audit log, a warning says that requests to extension servers are not audited.
func TestAuditIsMissed(t *testing.T) {
	d, log := recordsDoor(t, options{}, "")
	must.Do(t, d.makeAudit())
	check.Same(t, true, d.audit == nil, "no audit log")
	check.Has(t, log.String(), "level=WARN msg=\"requests to extension servers are in no audit log")
}

// The access log is written to its file, with the fraction of requests that the flag asks for, and
// the loss of lines is logged.
func TestAccessLogOfFlags(t *testing.T) {
	for sample, lines := range map[float64]int{0: 0, 1: 100} { // of 100 requests with 200
		file := filepath.Join(t.TempDir(), "access.log")
		d, log := recordsDoor(t, options{accessLog: file, accessSample: sample}, "")
		must.Do(t, d.makeAccessLog())
		stop := must.Run(t, d.accessLog.Run)
		for range 100 {
			if d.accessLog.Wants(http.StatusOK) {
				d.accessLog.Add(0, &accesslog.Line{Outcome: engine.Outcome{Status: http.StatusOK}})
			}
		}
		stop()
		check.Same(t, lines, bytes.Count(must.Get(os.ReadFile(file))(t), []byte("\n")), "lines of the sample %v", sample)
		must.Do(t, d.closeRecords()) // writing fails from here on
		stop = must.Run(t, d.accessLog.Run)
		d.accessLog.Add(0, &accesslog.Line{Outcome: engine.Outcome{Status: http.StatusOK}})
		stop()
		check.Has(t, log.String(), "access log lost lines")
		check.Fault(t, "already closed", d.accessLines.ends.Err(time.Time{}), "the check access-log")
	}
}

// Spans that are still queued are sent when the process ends. A missing collector delays neither its start nor its end.
func TestTracing(t *testing.T) {
	c := must.Get(otlp.Start(t.Context()))(t)
	defer c.Close()
	began := time.Now()
	for version, endpoint := range map[string]string{"v1": c.Address, "v1beta1": "127.0.0.1:1"} {
		d, _ := recordsDoor(t, options{}, strings.Replace(tracingHead, "v1", version, 1)+"endpoint: "+endpoint+"\nsamplingRatePerMillion: 1000000\n")
		tracer := must.Get(d.makeTracer())(t)
		requests.Start(tracer, &wire.Head{Method: "GET", Path: "/x"}, "GET", "", began, false).End(&engine.Outcome{Status: 503, Duration: time.Second, Retries: 2}, 503, "get", "", "gone")
		must.Do(t, d.closeRecords())
	}
	check.Same(t, true, time.Since(began) <= flushTime+5*time.Second, "ended after %s", time.Since(began))
	spans := c.Spans()
	check.Same(t, 1, len(spans), "spans")
	if s := spans[0]; s.Error != "gone" || s.Resource["service.name"] != "fairlead" || s.Resource["service.instance.id"] == "" || s.Attributes["fairlead.retries"] != "2" {
		t.Errorf("%+v", s)
	}
}

type small struct {
	bytes.Buffer
	room int
}

func (s *small) Write(p []byte) (int, error) {
	n, err := s.Buffer.Write(p[:min(len(p), s.room)])
	if s.room -= n; n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

func TestWholeLines(t *testing.T) {
	disk := &small{room: 6}
	w := &wholeLines{Writer: disk}
	for _, room := range []int{6, 0, 0, 1, 100} {
		disk.room = max(disk.room, room)
		_, _ = w.Write([]byte("line\n")) // some of these fail
	}
	check.Same(t, "line\nl\nline\n", disk.String(), "what is on disk")
	synctest.Test(t, func(t *testing.T) { // what hangs, as a file server that is away, fails until it goes on
		disk, lines := io.Pipe()
		w := &wholeLines{Writer: lines}
		go func() { _, _ = w.Write([]byte("line\n")) }()
		time.Sleep(2 * hangs)
		check.Fault(t, "has not ended", w.ends.Err(time.Time{}), "a write that hangs")
		must.Get(io.ReadFull(disk, make([]byte, len("line\n"))))(t)
		synctest.Wait()
		check.Fault(t, "", w.ends.Err(time.Time{}), "when it has ended")
	})
}
