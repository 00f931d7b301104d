package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// Pages of an allowed origin may read what this process and extension servers answer, errors and preflights without
// credentials too, and all of it has the HSTS directives. The local apiserver's answers have its own fields.
func TestBrowsers(t *testing.T) {
	const mine, other = "https://mine.example.com:8443", "https://mine.example.com.evil.org"
	w := newWorld(t, worldConfig{
		Config: Config{AllowedOrigins: []string{`//mine\.example\.com(:|$)`}, HSTS: []string{"max-age=1", "preload"}},
		remote: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Access-Control-Allow-Credentials", "true")
		},
		local: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Strict-Transport-Security", "its own") },
	})
	everyWay(t, func(t *testing.T, proto string) {
		c := w.httpClient(t, proto, nil)
		for _, tt := range []struct {
			method, path, user, origin string
			code                       int
			allowed, hsts              string
		}{
			{"GET", remoteGV + "/widgets", "bob", mine, 200, mine, "max-age=1; preload"},
			{"GET", remoteGV + "/widgets", "bob", other, 200, "", "max-age=1; preload"},
			{"GET", remoteGV + "/widgets", "bob", mine + strings.Repeat("8", maxOrigin), 200, "", "max-age=1; preload"},
			{"GET", remoteGV + "/widgets", "bob", "", 200, "", "max-age=1; preload"},
			{"GET", remoteGV + "/widgets", "", mine, 401, mine, "max-age=1; preload"},
			{"GET", remoteGV + "/widgets", "", "", 401, "", "max-age=1; preload"},
			{"OPTIONS", remoteGV + "/widgets", "", mine, 204, mine, "max-age=1; preload"},
			{"OPTIONS", "/fairlead/", "", mine, 204, mine, "max-age=1; preload"},
			{"OPTIONS", remoteGV + "/widgets", "", other, 401, "", "max-age=1; preload"},
			{"GET", "//api/v1/pods", "bob", mine, 404, mine, "max-age=1; preload"},
			{"GET", "/api/v1/pods", "bob", mine, 200, "", "its own"},
			{"OPTIONS", "/api/v1/pods", "bob", mine, 200, "", "its own"},
		} {
			name := strings.Join([]string{tt.method, tt.path, tt.user, tt.origin}, " ")
			r := w.request(t, tt.method, tt.path, nil)
			if tt.user != "" {
				r = w.as(t, tt.user, tt.method, tt.path, nil)
			}
			if tt.origin != "" {
				r.Header.Set("Origin", tt.origin)
			}
			got := w.do(t, c, r)
			got.want(t, tt.code, name)
			for field, want := range map[string]string{"Access-Control-Allow-Origin": tt.allowed, "Strict-Transport-Security": tt.hsts} {
				check.Same(t, want, strings.Join(got.header.Values(field), "|"), "%s: %s", name, field)
			}
		}
	})
}
