package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// inProcess asks a handler of this process as one would ask a server. It is for documents: the whole answer is held in memory.
func inProcess(h http.Handler) func(context.Context, *http.Request) (*http.Response, error) {
	return func(ctx context.Context, r *http.Request) (*http.Response, error) {
		r = r.Clone(ctx)
		r.RequestURI = r.URL.RequestURI()
		if r.Body == nil {
			r.Body = http.NoBody // a server's request always has one
		}
		w := &held{header: make(http.Header)}
		h.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK) // for a handler that has written nothing
		return &http.Response{
			Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
		}, nil
	}
}

// held is an answer as it is written.
type held struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *held) Header() http.Header { return w.header }

// WriteHeader keeps the first final status.
func (w *held) WriteHeader(code int) {
	if w.status == 0 && code >= http.StatusOK {
		w.status = code
	}
}

func (w *held) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
