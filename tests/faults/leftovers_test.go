//go:build e2e

package faults

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testLeftovers creates, changes and deletes APIServices under traffic, a thousand changes in all,
// and compares what Fairlead holds before and after.
func testLeftovers(t *testing.T, d *door) {
	const (
		groups  = 40
		changes = 23 // and a creation and a deletion: a thousand together
		workers = 5
	)
	b := d.w.newBackend()
	var list []string
	for i := range groups {
		list = append(list, fmt.Sprintf("g%d.%s", i, b.group))
	}
	cfg := extension.Config{Record: -1}
	for _, g := range list {
		cfg.GroupVersions = append(cfg.GroupVersions, g+"/v1")
	}
	servers := b.serve(t, 2, cfg)
	b.register(t, servers[0].Addr(), servers[1].Addr())
	b.await(t, d)
	clients := d.w.clients(workers)
	for _, c := range clients { // their connections exist before, too
		knock(t, c, d.Endpoint.URL+b.widgets())
	}
	before := d.holds(t, servers)

	stranger := pki.NewCA("stranger").PEM()
	bundles := [][]byte{slices.Concat(d.w.ca.PEM(), stranger), d.w.ca.PEM(), slices.Concat(stranger, d.w.ca.PEM()), stranger, d.w.ca.PEM()}
	work := make(chan string)
	var working sync.WaitGroup
	for _, c := range clients {
		working.Go(func() {
			for group := range work {
				d.churn(t, c, b.object(group), bundles, changes)
			}
		})
	}
	begun := time.Now()
	for _, g := range list {
		work <- g
	}
	close(work)
	working.Wait()
	t.Logf("%d updates in %s", groups*(changes+2), time.Since(begun).Round(time.Millisecond))

	var after holding
	const spare = 12 // goroutines and descriptors that vary: scrapes, timers of handshakes, a running probe
	ok := func() bool {
		after = d.holds(t, servers)
		return after.goroutines <= before.goroutines+spare && after.files <= before.files+spare && after.backend <= before.backend+2 && after.series == 0
	}
	deadline := time.Now().Add(longest)
	for !ok() && time.Now().Before(deadline) {
		suite.Pause(t, 500*time.Millisecond)
	}
	t.Logf("before %+v, after %+v", before, after)
	if !ok() {
		t.Errorf("before %+v, after %+v\n%.600s", before, after, must.Get(d.get(t.Context(), "/debug/pprof/goroutine?debug=1"))(t))
	}
}

// holding is what Fairlead holds.
type holding struct {
	goroutines, files int   // of its process
	backend           int64 // connections that the backend sees
	series            int   // of deleted APIServices
	example           string
}

// holds returns what Fairlead holds now, with the connections of the backend's own APIService.
func (d *door) holds(t *testing.T, servers []*extension.Server) holding {
	t.Helper()
	s := must.Get(ask.Metrics(t.Context(), d.admin, d.Admin.URL))(t)
	h := holding{goroutines: int(s["go_goroutines"]), files: int(s["process_open_fds"])}
	for _, x := range servers {
		h.backend += x.Stats().Open
	}
	for name := range s {
		if strings.Contains(name, `"v1.g`) || strings.Contains(name, `group="g`) {
			h.series++
			h.example = name
		}
	}
	return h
}

// churn creates an APIService, changes it under traffic and deletes it.
func (d *door) churn(t *testing.T, c *http.Client, object *apiregistrationv1.APIService, bundles [][]byte, changes int) {
	ctx := t.Context()
	api := d.w.groups.ApiregistrationV1().APIServices()
	object, err := api.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	url := fmt.Sprintf("%s/apis/%s/v1/namespaces/default/widgets", d.Endpoint.URL, object.Spec.Group)
	watching, end := context.WithCancel(ctx)
	defer end()
	for i := range changes {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"fairlead.dev/max-inflight":"%d"}},"spec":{"caBundle":%q}}`,
			100+i, base64.StdEncoding.EncodeToString(bundles[i%len(bundles)]))
		if _, err := api.Patch(ctx, object.Name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Error(err)
			return
		}
		knock(t, c, url)
		if i%8 == 4 {
			if res, err := ask.Open(watching, c, url+"?watch=1&resourceVersion=1", nil); err == nil {
				context.AfterFunc(watching, func() { res.Body.Close() })
			}
		}
	}
	if err := api.Delete(ctx, object.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// knock sends a request whose answer does not matter: the APIService may be in any state.
func knock(t *testing.T, c *http.Client, url string) {
	t.Helper()
	if _, err := ask.Do(t.Context(), c, http.MethodGet, url, nil, ""); err != nil {
		t.Error(err)
	}
}
