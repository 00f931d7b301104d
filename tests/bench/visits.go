package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// visits measures one kubectl call, with a client certificate and with a token. Four run at a time:
// more than two processors can serve at once.
func visits(ctx context.Context, w *world) {
	for _, v := range []struct {
		with, token string
		tls         *tls.Config
	}{{"certificate", "", w.proven("visitor", "visitors")}, {"token", token(), w.tls}} {
		w.compare(ctx, "visits-"+v.with, w.want(ctx, fairlead, haproxy, aggregator), func(p *peer) load.Config {
			at := "https://" + cmp.Or(p.visits, p.address)
			return load.Config{Connections: 4, Visit: func(ctx context.Context) error { return visit(ctx, at, v.tls, v.token) }}
		})
	}
}

// visit connects with a full handshake, requests discovery as if half of it were cached, requests
// an object, and disconnects.
func visit(ctx context.Context, at string, tc *tls.Config, token string) (err error) {
	defer try.Catch(&err)
	transport := &http.Transport{TLSClientConfig: tc.Clone(), Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true) // and nothing else
	defer transport.CloseIdleConnections()
	const discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	tag := ""
	for _, want := range []struct {
		path, accept string
		status       int
	}{
		{"/api", discovery, http.StatusOK}, {"/apis", discovery, http.StatusOK}, {"/apis", discovery, http.StatusNotModified}, {resources + "/one", "application/json", http.StatusOK},
	} {
		header := http.Header{"Accept": {want.accept}}
		maps.Copy(header, ask.Bearer(token))
		if want.status == http.StatusNotModified {
			header.Set("If-None-Match", tag)
		}
		got := try.Get(ask.Do(ctx, &http.Client{Transport: transport}, http.MethodGet, at+want.path, header, ""))
		if got.Code != want.status {
			return fmt.Errorf("%s: status %d, not %d", want.path, got.Code, want.status)
		}
		tag = got.Header.Get("Etag")
	}
	return nil
}
