//go:build e2e

package differential

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// claiming answers with an index of OpenAPI v3 that claims paths, and for them with "FOREIGN".
func claiming(paths ...string) func(http.Handler) http.Handler {
	index := struct {
		Paths map[string]map[string]string `json:"paths"`
	}{map[string]map[string]string{}}
	for _, path := range paths {
		index.Paths[path] = map[string]string{"serverRelativeURL": "https://127.0.0.1/openapi/v3/" + path + "?hash=FOREIGN"}
	}
	body, _ := json.Marshal(index)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch path, below := strings.CutPrefix(r.URL.Path, "/openapi/v3"); {
			case !below:
				next.ServeHTTP(w, r)
			case path == "":
				_, _ = w.Write(body)
			default:
				fmt.Fprint(w, `{"openapi":"3.0.0","info":{"title":"FOREIGN","version":"v"},"paths":{}}`)
			}
		})
	}
}

// TestClaims shows that no index of an extension server replaces documents that are not its own,
// though kube-apiserver's own aggregator believes it.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	must.Get(w.StartSampleAPIServer(t.Context()))(t)
	w.define(t, fmt.Sprintf(crd, "crontab", "stable.example.com", "CronTab", "ct"))
	claims := []string{"apis/apps/v1", "api/v1", "apis/stable.example.com/v1", "apis/wardle.example.com/v1beta1", "version", "apis", "apis/apps", "", "/", "/apis/apps/v1", "apis/apps/v1/", "apis/apps/v%31", "nosuch"}
	for i := range 10_000 {
		claims = append(claims, fmt.Sprintf("apis/g%d.example.com/v1", i))
	}
	w.extend(t, "thief", extension.Config{Wrap: claiming(claims...)}, map[string]priority{"thief.example.com/v1": {1500, 50}})
	for _, path := range claims[:4] {
		suite.Eventually(t, 2*time.Minute, "kube-apiserver believes it about "+path, func() (bool, string) {
			a := w.ask(t, w.Endpoint(), "/openapi/v3/"+path, nil)
			return strings.Contains(a.Body, "FOREIGN"), fmt.Sprint(a.Code)
		})
	}
	suite.Eventually(t, 2*time.Minute, "Fairlead serves the CRD's own", func() (bool, string) {
		a := w.ask(t, w.front.Endpoint, "/openapi/v3/apis/stable.example.com/v1", nil)
		return strings.Contains(a.Body, ".v1.CronTab"), fmt.Sprint(a.Code)
	})
	for path, kind := range map[string]string{
		"apis/apps/v1": ".v1.Deployment", "api/v1": ".v1.Pod", "apis/stable.example.com/v1": ".v1.CronTab", "apis/wardle.example.com/v1beta1": ".v1beta1.Flunder", "version": "/version/",
		"apis/apps": "/apis/apps/",
		"":          "", "apis/apps/v%31": "", "%61pis/apps/v1": "", "apis/apps/v1?hash=FOREIGN": "", "/": "", "/apis/apps/v1": "", "apis/apps/v1/": "", "apis/apps/v%2531": "", "nosuch": "", "apis/g7.example.com/v1": "",
	} {
		for range 12 { // kube-apiserver chooses by chance
			a := w.ask(t, w.front.Endpoint, "/openapi/v3/"+path, nil)
			if strings.Contains(a.Body, "FOREIGN") || kind != "" && (a.Code != http.StatusOK || !strings.Contains(a.Body, kind)) || kind == "" && a.Code == http.StatusOK {
				t.Errorf("/openapi/v3/%s: status %d, want %q: %.200s", path, a.Code, kind, a.Body)
				break
			}
		}
	}
	for range 12 {
		if a := w.ask(t, w.front.Endpoint, "/openapi/v3", nil); a.Code != http.StatusOK || strings.Contains(a.Body, "FOREIGN") || len(a.Body) > 64<<10 {
			t.Errorf("the index: status %d, %d bytes: %.2000s", a.Code, len(a.Body), a.Body)
			break
		}
		<-time.After(500 * time.Millisecond)
	}
}
