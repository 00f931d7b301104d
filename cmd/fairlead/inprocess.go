package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// inProcess sends requests to a handler of this process as if it were a server. It is an
// http.RoundTripper. Responses stream, and a reader that does not read blocks the handler.
type inProcess struct{ http.Handler }

func (h inProcess) fetch(ctx context.Context, r *http.Request) (*http.Response, error) {
	return h.RoundTrip(r.WithContext(ctx))
}

// RoundTrip implements http.RoundTripper.
func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody // a server's request always has one
	}
	body, to := io.Pipe()
	w := &streamed{header: make(http.Header), to: to, begun: make(chan struct{})}
	res := &http.Response{ContentLength: -1, Request: r, Body: &unread{body, cancel}}
	go func() { // ends with the handler, which ends when the body is closed
		defer func() {
			if cause := recover(); cause != nil {
				_ = to.CloseWithError(fmt.Errorf("asking this process: %v", cause))
			}
			w.WriteHeader(http.StatusOK) // for a handler that has written nothing
			_ = to.Close()
		}()
		h.ServeHTTP(w, r)
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		_ = res.Body.Close()
		return nil, ctx.Err()
	}
	res.Status, res.StatusCode, res.Header = http.StatusText(w.status), w.status, w.sent
	return res, nil
}

// unread is a response body. Close ends the handler.
type unread struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *unread) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// streamed is the http.ResponseWriter of a streamed response.
type streamed struct {
	header, sent http.Header
	status       int
	to           *io.PipeWriter
	begun        chan struct{} // closed with the head
	once         sync.Once
}

func (w *streamed) Header() http.Header { return w.header }

// WriteHeader keeps the first final status.
func (w *streamed) WriteHeader(code int) {
	if code < http.StatusOK {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *streamed) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.to.Write(b)
}

// Flush implements http.Flusher: nothing is held back.
func (w *streamed) Flush() { w.WriteHeader(http.StatusOK) }
