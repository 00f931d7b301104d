package proxy

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// browsers sets the fields of kube-apiserver's filters WithCORS and WithHSTS
// (k8s.io/apiserver/pkg/server/filters) on all answers but the local apiserver's, which has filters
// of its own. The filters themselves would link flow control.
type browsers struct {
	origins []*regexp.Regexp // those whose pages may read answers
	hsts    string           // empty means none
}

func newBrowsers(origins, hsts []string) (b browsers, err error) {
	b.hsts = strings.Join(hsts, "; ")
	for _, o := range origins {
		re, err := regexp.Compile(o)
		if err != nil {
			return b, fmt.Errorf("reading allowed origins: %w", err)
		}
		b.origins = append(b.origins, re)
	}
	return b, nil
}

// concern reports whether a head may be of a page of another origin. Such a request goes to
// Proxy.ServeHTTP: matching what a stranger sent takes too long for the loop.
func (b *browsers) concern(h *Head) bool { return len(b.origins) > 0 && h.get("origin") != "" }

// maxOrigin is more than a scheme, a host of 253 bytes, and a port: matching takes long.
const maxOrigin = 512

func (b *browsers) allow(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	return origin != "" && len(origin) <= maxOrigin && slices.ContainsFunc(b.origins, func(re *regexp.Regexp) bool { return re.MatchString(origin) })
}

// sign sets the fields with kube-apiserver's values.
func (b *browsers) sign(h http.Header, r *http.Request) {
	if b.hsts != "" && h["Strict-Transport-Security"] == nil {
		h.Set("Strict-Transport-Security", b.hsts)
	}
	if b.allow(r) {
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		h.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since")
		h.Set("Access-Control-Expose-Headers", "Date")
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}
