package openapi

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// The groups that this process serves are described by its own documents in the index and in v2,
// whatever the local apiserver and the backends say.
func TestOwnGroup(t *testing.T) {
	const group, path = "apiregistration.k8s.io/v1", "/apis/apiregistration.k8s.io/v1/things"
	for _, alone := range []bool{false, true} {
		inBubble(t, func(t *testing.T, s *stage) {
			s.Set("own", serving(define(group, "read only")))
			s.Set(scene.Home, serving(define(group, "with writes"), define("apiregistration.k8s.io/v1beta1", "old"), define("apps/v1", "deployments")))
			s.Set("liar", serving(define(group, "lies"), define("liar.example.com/v1", "itself")))
			s.cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
			if alone {
				s.cfg.FetchLocal = nil
			}
			s.make()
			s.Claim("liar.example.com/v1", "liar", 100, 10)
			s.open()
			s.pass(10 * time.Second)

			item, _ := s.index()["apis/"+group].(object)
			url, _ := item["serverRelativeURL"].(string)
			if w := s.get(url, nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "read only") {
				t.Errorf("alone %v: %s: %d %s", alone, url, w.Code, w.Body)
			}
			v2 := s.v2()
			if _, ok := v2["paths"].(object)[path]; !ok {
				t.Errorf("alone %v: v2 lacks %s: %v", alone, path, v2["paths"])
			}
			if got := s.described(group); got != "read only" {
				t.Errorf("alone %v: v2 describes it as %v", alone, got)
			}
			for other, want := range map[string]bool{"apis/apiregistration.k8s.io/v1beta1": false, "apis/apps/v1": !alone, "apis/liar.example.com/v1": true} {
				if _, ok := s.index()[other]; ok != want {
					t.Errorf("alone %v: %s is in the index: %v", alone, other, ok)
				}
				if _, ok := v2["paths"].(object)["/"+other+"/things"]; ok != want && other != "apis/apiregistration.k8s.io/v1beta1" {
					t.Errorf("alone %v: %s is in v2: %v", alone, other, ok)
				}
			}
		})
	}
}

// Run fails if this process cannot describe itself.
func TestOwnGroupMissing(t *testing.T) {
	s := newStage(t)
	for name, h := range map[string]http.HandlerFunc{"nothing": saying(http.StatusNotFound, ""), "another": serving(define("apps/v1", "x")), "garbage": saying(http.StatusOK, "]")} {
		s.Set("own", h)
		s.cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
		s.make()
		if err := s.o.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "reading OpenAPI of this process itself") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
