package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
)

// The head of a watch without events arrives when the handler flushes it. Closing the body ends the
// handler.
func TestInProcessFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // reports a deadlock
		h := inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush() //nolint:forcetypeassert // of this package
			<-r.Context().Done()
		})}
		res, err := h.RoundTrip(httptest.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "/watch", nil))
		if err != nil || res.StatusCode != http.StatusOK || res.ContentLength != -1 || res.Request == nil {
			t.Fatalf("%+v, %v", res, err)
		}
		_ = res.Body.Close()
	})
}
