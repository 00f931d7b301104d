package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
)

const flushTime = 5 * time.Second // for the last spans: an unreachable collector must not delay the end

func (p *process) makeTracer() (trace.Tracer, error) {
	if p.o.tracing == "" {
		return nil, nil
	}
	config, err := readTracing(p.o.tracing)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--tracing-config-file: %w", err))
	}
	// The default handler writes to standard error.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { p.log.Warn("sending spans", "err", err) }))
	// The provider (re)connects in the background: an unreachable collector delays nothing.
	spans, err := tracing.NewProvider(context.Background(), config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", "fairlead"), attribute.String("service.version", version),
		attribute.String("service.instance.id", p.identity),
	)})
	if err != nil {
		return nil, fmt.Errorf("making the span exporter: %w", err)
	}
	p.closing = append(p.closing, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), flushTime)
		defer cancel()
		if err := spans.Shutdown(ctx); err != nil {
			p.log.Warn("sending the last spans", "err", err) // the process still exits successfully
		}
		return nil
	})
	return spans.Tracer("github.com/fairlead-proxy/fairlead/proxy"), nil
}

// readTracing reads the configuration as kube-apiserver does, in any API version.
func readTracing(file string) (*tracingapi.TracingConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	config := &apiserver.TracingConfiguration{}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	if err := runtime.DecodeInto(decoder, data, config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	gates := featuregate.NewFeatureGate()
	faults := tracingapi.ValidateTracingConfiguration(&config.TracingConfiguration, gates, nil)
	return &config.TracingConfiguration, faults.ToAggregate()
}
