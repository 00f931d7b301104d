package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// visits measures one kubectl call, with a client certificate and with a token. Four run at a time:
// more than two processors can serve at once.
func visits(ctx context.Context, w *world) {
	for _, v := range []struct {
		with, token string
		tls         *tls.Config
	}{{"certificate", "", w.proven("visitor", "visitors")}, {"token", token(0), w.tls}} {
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
	transport := &http.Transport{TLSClientConfig: tc.Clone(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	const discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	tag := ""
	for _, ask := range []struct {
		path, accept string
		status       int
	}{
		{"/api", discovery, http.StatusOK}, {"/apis", discovery, http.StatusOK}, {"/apis", discovery, http.StatusNotModified}, {resources + "/one", "application/json", http.StatusOK},
	} {
		req := try.Get(http.NewRequestWithContext(ctx, http.MethodGet, at+ask.path, nil))
		req.Header.Set("Accept", ask.accept)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if ask.status == http.StatusNotModified {
			req.Header.Set("If-None-Match", tag)
		}
		resp, err := transport.RoundTrip(req)
		try.Do(err)
		_, err = io.Copy(io.Discard, resp.Body)
		try.Do(errors.Join(err, resp.Body.Close()))
		if resp.StatusCode != ask.status || resp.ProtoMajor != 2 {
			return fmt.Errorf("%s: %s over %s, not %d over HTTP/2", ask.path, resp.Status, resp.Proto, ask.status)
		}
		tag = resp.Header.Get("Etag")
	}
	return nil
}
