package apiservices

import (
	"context"
	"net/http"
)

// flushing makes any writer one that k8s.io/apiserver streams a watch to: it looks for http.Flusher, and keeps that through its own wrappers only where
// http.CloseNotifier is beside it (pkg/endpoints/responsewriter), which net/http's own writers have and most others lost when it was deprecated.
type flushing struct {
	http.ResponseWriter
	ctx context.Context
}

// Flush implements http.Flusher.
func (w *flushing) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush has nothing buffered
}

// CloseNotify implements http.CloseNotifier.
func (w *flushing) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// Unwrap is for http.ResponseController.
func (w *flushing) Unwrap() http.ResponseWriter { return w.ResponseWriter }
