package main

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// --allow-url-backends reaches the table; without it a URL counts in no cluster.
func TestAllowURLBackends(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		d := buildDoor(t, prometheus.NewRegistry(), func(o *options, ca *pki.CA) {
			c := &crowd{apiServices: 1, services: 1, annotations: object{"fairlead.dev/url": "https://far.example.com"}}
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, true) }))
			s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, MinVersion: tls.VersionTLS12}
			s.StartTLS()
			t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
			kubeconfig, err := clientcmd.LoadFromFile(o.kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			kubeconfig.Clusters["c"].Server = s.URL
			if err := clientcmd.WriteToFile(*kubeconfig, o.kubeconfig); err != nil {
				t.Fatal(err)
			}
			o.allowURLs = allowed
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
			break
		}
		if ctx.Err() != nil {
			t.Error("the table is never complete")
		}
		cancel()
		running.Wait()
	}
}
