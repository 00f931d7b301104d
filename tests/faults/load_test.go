//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// mustSucceed fails the test for failed requests, and for heads that took longer than longest,
// unless that is zero.
func mustSucceed(t *testing.T, shots []volley.Shot, longest time.Duration) {
	t.Helper()
	volley.Judge(t, shots, 0, func(s *volley.Shot) bool { return s.Failed() || longest > 0 && s.Head > longest })
}

// reads requests a backend's objects in turn.
func (d *door) reads(b *backend) func(int) (string, string, string) {
	return func(i int) (string, string, string) {
		return http.MethodGet, fmt.Sprintf("%s%s/widget-%03d", d.Endpoint.URL, b.widgets(), i%100), ""
	}
}

// mixed reads, writes and watches a backend in turn. A watch ends after a second.
func (d *door) mixed(b *backend) func(int) (string, string, string) {
	read := d.reads(b)
	return func(i int) (string, string, string) {
		switch i % 4 {
		case 1:
			return http.MethodPost, d.Endpoint.URL + b.widgets(), `{"metadata":{"generateName":"made-"},"spec":{"payload":"x"}}`
		case 3:
			return http.MethodGet, d.Endpoint.URL + b.widgets() + "?watch=1&resourceVersion=1&timeoutSeconds=1", ""
		}
		return read(i)
	}
}
