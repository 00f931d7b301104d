//go:build e2e

package fleet

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
)

// documents are what a client reads of discovery.
type documents struct {
	client   *http.Client
	url      string
	upgraded atomic.Bool
	first    sets.Set[string]   // before the upgrade
	always   sets.Set[string]   // and after it
	all      []sets.Set[string] // at each time
}

func (d *documents) watch(ctx context.Context) {
	for ; ctx.Err() == nil; <-time.After(200 * time.Millisecond) {
		a, err := ask.Do(ctx, d.client, http.MethodGet, d.url+"/apis", http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}}, "")
		list := &apidiscoveryv2.APIGroupDiscoveryList{}
		if err != nil || a.Code != http.StatusOK || json.Unmarshal([]byte(a.Body), list) != nil {
			continue // requests are counted elsewhere
		}
		now := sets.New[string]()
		for _, g := range list.Items {
			if strings.HasPrefix(g.Name, churned) {
				continue // these come and go
			}
			for _, v := range g.Versions {
				now.Insert(g.Name + "/" + v.Version)
			}
		}
		d.all = append(d.all, now)
		if d.first == nil {
			d.first = now
		}
		if d.always == nil && d.upgraded.Load() {
			d.always = d.first.Intersection(now)
		}
	}
}

// gone counts the documents that lack what both releases serve.
func (d *documents) gone() (n int) {
	for _, now := range d.all {
		if !now.IsSuperset(d.always) {
			n++
		}
	}
	return n
}
