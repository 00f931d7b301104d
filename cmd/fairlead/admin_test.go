package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// One caller's scrapes leave a place for another's.
func TestScrapesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		slow := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { <-end; return nil, nil })
		pages := adminPages(http.NotFoundHandler(), http.NotFoundHandler(), slow, http.NotFoundHandler(), func(next http.Handler) http.Handler { return next })
		codes := make(chan int, maxScrapes+1)
		for _, name := range []string{"curious", "curious", "curious", "curious", "prometheus"} {
			go func() {
				w := httptest.NewRecorder()
				pages.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: name}), http.MethodGet, "/metrics", nil))
				codes <- w.Code
			}()
			synctest.Wait()
		}
		check.Same(t, 1, len(codes), "refused scrapes")
		check.Same(t, http.StatusServiceUnavailable, <-codes, "the last place, for the same caller")
		close(end)
		for range maxScrapes {
			check.Same(t, http.StatusOK, <-codes, "status of a scrape")
		}
	})
}
