package main

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// debugFrom is the klog verbosity at which our own debug lines show.
const debugFrom = 4

// newLogger makes the log, and leads klog (client-go, k8s.io/apiserver) into it.
func newLogger(w io.Writer, format string, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if verbosity >= debugFrom {
		level = slog.LevelDebug
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if format == "json" {
		h = slog.NewJSONHandler(w, o)
	}
	// client-go's verbose lines (from 6 on) show requests with their headers and bodies, and a TokenReview's body is somebody's token: a handler whose level
	// stops at slog.LevelDebug, which is klog's 4, never prints them.
	klog.SetLogger(logr.FromSlogHandler(h))
	return slog.New(h)
}
