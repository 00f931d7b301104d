//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// TestConditional asks a kube-apiserver whose authorizer is a webhook that answers with conditions (KEP-5681), which
// this release does not know: requests that it would allow on a condition stay refused, as in kube-apiserver.
func TestConditional(t *testing.T) {
	answers := map[string]string{
		"sure": `{"allowed": true}`,
		"conditional": `{"allowed": false, "conditionSetChain": [{"authorizerName": "policy", "conditionsType": "k8s.io/cel",
			"conditions": [{"id": "one", "effect": "Allow", "condition": "true"}]}]}`,
		"both":     `{"allowed": true, "denied": true}`,
		"stranger": `{}`,
	}
	var mu sync.Mutex
	asked := map[string]int{}
	webhook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		status := answers[review.Spec.User]
		if status == "" {
			status = "{}"
		}
		mu.Lock()
		asked[review.Spec.User]++
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": ` + status + `}`))
	}))
	defer webhook.Close()
	dir := suite.Folder(t, "conditional")
	config := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	suite.Put(t, config, strings.ReplaceAll(webhookConfig, "URL", webhook.URL))
	w := suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--authorization-mode=Webhook", "--authorization-webhook-version=v1", "--authorization-webhook-config-file=" + config,
	}})
	must.Get(w.StartSampleAPIServer(t.Context()))(t)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, t.TempDir())}))(t)
	must.Do(t, w.WaitAvailable(t.Context(), front.Endpoint, "wardle.example.com/v1beta1"))
	must.Do(t, w.WaitAvailable(t.Context(), w.Endpoint(), "wardle.example.com/v1beta1"))
	for name := range answers {
		caller := cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue("of-"+name, cluster.Leaf{User: name}))(t)}
		for _, door := range []cluster.Endpoint{w.Endpoint(), front.Endpoint} {
			c := suite.Client(t, door, caller)
			const flunders = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders"
			paths := []string{flunders, "/api/v1/nodes", "/fairlead/status"}
			if door == w.Endpoint() {
				paths = paths[:2]
			}
			for _, path := range paths {
				r := must.Get(ask.Do(t.Context(), c, http.MethodGet, door.URL+path, nil, ""))(t)
				check.Same(t, name == "sure", r.Code == http.StatusOK, "GET %s by %s at %s: %d", path, name, door.URL, r.Code)
			}
			r := must.Get(ask.Do(t.Context(), c, http.MethodPost, door.URL+flunders, nil, `{
				"apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder", "metadata": {"generateName": "a-"},
				"spec": {"referenceType": "Flunder", "flunderReference": "x"}
			}`))(t)
			check.Same(t, name == "sure", r.Code == http.StatusCreated, "POST by %s at %s: %d %s", name, door.URL, r.Code, r.Body)
		}
		mu.Lock()
		n := asked[name]
		mu.Unlock()
		if n == 0 {
			t.Errorf("nobody asked for %s", name)
		}
	}
}

const webhookConfig = `
apiVersion: v1
kind: Config
clusters: [{name: webhook, cluster: {server: URL}}]
users: [{name: apiserver}]
contexts: [{name: it, context: {cluster: webhook, user: apiserver}}]
current-context: it
`
