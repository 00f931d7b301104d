package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	requests "github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/otlp"
)

// tracingDoor is a door with a tracing configuration.
func tracingDoor(t *testing.T, text string) *door {
	t.Helper()
	return &door{o: &options{tracing: writeFile(t, filepath.Join(t.TempDir(), "tracing.yaml"), text)}, log: slog.New(slog.DiscardHandler)}
}

// What has not been sent when the process ends is sent then.
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

// A collector that is not there neither keeps the process from starting nor from ending.
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
