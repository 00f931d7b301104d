package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/apiserver"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// --allow-url-backends reaches the table; without it, an APIService by URL of a cluster is invalid.
// So does --ca-rotation-overlap, whose 0 is none, not the default.
func TestAllowURLBackends(t *testing.T) {
	for allowed, overlap := range map[bool]time.Duration{false: 0, true: time.Hour} {
		d := buildDoor(t, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
			c := &crowd{Server: apiserver.New(), apiServices: 1, services: 1, annotations: map[string]string{"fairlead.dev/url": "https://far.example.com"}}
			c.serve(t, o, ca)
			o.allowURLs, o.caOverlap = allowed, overlap
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var running sync.WaitGroup
		running.Go(func() { _ = d.registry.Run(ctx) })
		for table := range latest.Of(ctx, d.registry.Table, nil) {
			if !table.Complete() {
				continue
			}
			if e := table.Entries()[0]; (len(e.Endpoints) == 1) != allowed || (e.Verdict.Reason == registry.ReasonInvalidURL) == allowed {
				t.Errorf("allowed %v: %+v %v", allowed, e.Verdict, e.Endpoints)
			}
			check.Same(t, overlap, table.Entries()[0].Policy.CAOverlap, "overlap")
			break
		}
		if ctx.Err() != nil {
			t.Error("the table did not become complete")
		}
		cancel()
		running.Wait()
	}
}
