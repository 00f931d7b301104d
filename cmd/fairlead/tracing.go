package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	requests "github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// flushTime is how long the last spans have to reach their collector: one that is away must not keep a process from ending.
const flushTime = 5 * time.Second

// makeTracer makes what turns requests into spans. Nil: there is no tracing.
func (d *door) makeTracer() (*requests.Tracer, error) {
	if d.o.tracing == "" {
		return nil, nil
	}
	config, err := readTracing(d.o.tracing)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--tracing-config-file: %w", err))
	}
	identity, err := replicaName()
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { d.log.Warn("sending spans", "err", err) })) // or it writes to standard error by itself
	// The connection is made, and made again, in the background: a collector that is away keeps nobody waiting.
	d.spans, err = tracing.NewProvider(context.Background(), config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "fairlead"), attribute.String("service.version", version), attribute.String("service.instance.id", identity),
	)})
	if err != nil {
		return nil, fmt.Errorf("making what spans go to: %w", err)
	}
	return requests.New(d.spans), nil
}

// readTracing reads the configuration as kube-apiserver does, in any of its versions.
func readTracing(file string) (*tracingapi.TracingConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	config := &apiserver.TracingConfiguration{}
	if err := runtime.DecodeInto(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data, config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if faults := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, featuregate.NewFeatureGate(), nil); len(faults) > 0 {
		return nil, faults.ToAggregate()
	}
	return &config.TracingConfiguration, nil
}

// flushSpans sends what has not been sent yet.
func (d *door) flushSpans() error {
	if d.spans == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := d.spans.Shutdown(ctx); err != nil {
		d.log.Warn("sending the last spans", "err", err) // no reason to end otherwise than well
	}
	return nil
}
