package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/check"
)

// One caller's scrapes leave a place for another's.
func TestScrapesAreShared(t *testing.T) {
	began, end := make(chan struct{}), make(chan struct{})
	slow := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		began <- struct{}{}
		<-end
		return nil, nil
	})
	pages := adminPages(http.NotFoundHandler(), http.NotFoundHandler(), slow, http.NotFoundHandler(), func(next http.Handler) http.Handler { return next })
	scrape := func(name string) (over <-chan int) {
		ctx, answered := request.WithUser(t.Context(), &user.DefaultInfo{Name: name}), make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil))
			answered <- w.Code
		}()
		return answered
	}
	var all []<-chan int
	for range maxScrapes - 1 {
		all = append(all, scrape("curious"))
		<-began
	}
	over := scrape("curious")
	select {
	case <-began:
		t.Error("one caller has all places")
	case status := <-over:
		check.Same(t, http.StatusServiceUnavailable, status, "the last place, for the same caller")
		all = append(all, scrape("prometheus"))
		<-began
	}
	close(end)
	for _, over := range all {
		check.Same(t, http.StatusOK, <-over, "status of a scrape")
	}
}
