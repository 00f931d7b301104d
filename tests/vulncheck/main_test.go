package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A database that cannot be read must never look like a pass.
func TestUncheckedIsNoPass(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	defer gone.Close()
	for _, db := range []string{gone.URL, "http://127.0.0.1:1", "file:///nowhere", ":"} {
		err := check(t.Context(), db, io.Discard)
		if !errors.As(err, new(uncheckedError)) {
			t.Errorf("%s: %v", db, err)
		}
	}
}

func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		err  error
		okay bool
		code int
		says string
	}{
		{nil, false, 0, "no known vulnerability"},
		{uncheckedError{errors.New("no network")}, false, exitUnchecked, "NOT CHECKED"},
		{uncheckedError{errors.New("no network")}, true, 0, "NOT CHECKED"},
		{errors.New("found"), true, exitFound, "FAIL"},
	} {
		var out strings.Builder
		if code := end(&out, tc.err, tc.okay); code != tc.code || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%v: %d, %s", tc.err, code, out.String())
		}
	}
}
