package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/registry/apiservices"
	"github.com/fairlead-proxy/fairlead/registry/printable"
)

// debugFrom is the klog verbosity from which our own debug lines are logged.
const debugFrom = 4

// newLogger makes the log, and sends klog (client-go, k8s.io/apiserver) to it.
func newLogger(w io.Writer, format string, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if verbosity >= debugFrom {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if format == "json" {
		h = slog.NewJSONHandler(printable.JSON(w), o) // the text handler quotes by itself
	}
	// client-go's verbose lines (from 6 on) show requests with headers and bodies, and the body of
	// a TokenReview is a user's token. A handler with slog.LevelDebug, which is klog's 4, never
	// prints them.
	klog.SetLogger(logr.FromSlogHandler(dropGone{h}))
	return slog.New(h)
}

// dropGone drops the errors that k8s.io/apiserver logs when a client disconnects early: otherwise a
// stranger could fill the log.
type dropGone struct{ slog.Handler }

// Handle implements slog.Handler.
func (p dropGone) Handle(ctx context.Context, r slog.Record) error {
	gone := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		gone = ok && apiservices.ClientGone(err)
		return !gone
	})
	if gone {
		return nil
	}
	return p.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (p dropGone) WithAttrs(a []slog.Attr) slog.Handler { return dropGone{p.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (p dropGone) WithGroup(name string) slog.Handler { return dropGone{p.Handler.WithGroup(name)} }
