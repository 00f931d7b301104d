package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A visit sends four requests over one new connection, and reports an unexpected status.
func TestVisit(t *testing.T) {
	var asked, from []string // requests are sequential
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, from = append(asked, r.URL.Path+r.Header.Get("If-None-Match")), append(from, r.RemoteAddr)
		w.Header().Set("Etag", `"1"`)
		switch {
		case r.Header.Get("Authorization") != "Bearer t":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Header.Get("If-None-Match") == `"1"`:
			w.WriteHeader(http.StatusNotModified)
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	tc := s.Client().Transport.(*http.Transport).TLSClientConfig
	for range 2 {
		must.Do(t, visit(t.Context(), s.URL, tc, "t"))
	}
	want := []string{"/api", "/apis", `/apis"1"`, resources + "/one"}
	if !slices.Equal(asked, slices.Concat(want, want)) || len(slices.Compact(from)) != 2 {
		t.Errorf("%q was requested from %q", asked, from)
	}
	if err := visit(t.Context(), s.URL, tc, "x"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("%v, want a 401", err)
	}
}
