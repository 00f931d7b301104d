package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A response begins with the first flush, as that of a watch without events, and its handler ends
// when its body is closed.
func TestInProcessStreams(t *testing.T) {
	ended := make(chan struct{})
	h := inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})}
	res := must.Get(h.fetch(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil)))(t)
	check.Same(t, http.StatusOK, res.StatusCode, "status")
	must.Do(t, res.Body.Close())
	<-ended
	silent := inProcess{http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	check.Same(t, http.StatusOK, must.Get(silent.fetch(t.Context(), httptest.NewRequest(http.MethodGet, "/", nil)))(t).StatusCode, "status of a handler that writes nothing")
}
