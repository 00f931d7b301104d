package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// visits is what one kubectl costs, with a client certificate and with a token. Four come at a
// time: more than two processors can serve at once.
func visits() scenario {
	return scenario{name: "visits", about: "a new connection, /api, /apis, /apis unchanged, GET 1 KB, with certificate and with token", run: func(ctx context.Context, w *world, o *options, r *results) error {
		pair, err := w.PKI.Client.Issue("visitor", cluster.Leaf{User: "visitor", Groups: []string{"visitors"}})
		if err != nil {
			return err
		}
		certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			return err
		}
		proven := w.tls.Clone()
		proven.Certificates = []tls.Certificate{certificate}
		for _, v := range []struct {
			with, token string
			tls         *tls.Config
		}{{"certificate", "", proven}, {"token", token(0), w.tls}} {
			of := func(p *peer) shape {
				at := "https://" + cmp.Or(p.visits, p.address)
				return shape{conns: 4, visit: func(ctx context.Context) error { return visit(ctx, at, v.tls, v.token) }}
			}
			if err := w.rounds(ctx, o, r, "visits-"+v.with, []string{fairlead, haproxy, aggregator}, of); err != nil {
				return err
			}
		}
		return nil
	}}
}

// visit is a connection with a full handshake, discovery as if half of it were known, an object,
// and the end.
func visit(ctx context.Context, at string, tc *tls.Config, token string) error {
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
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+ask.path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", ask.accept)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		if ask.status == http.StatusNotModified {
			req.Header.Set("If-None-Match", tag)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != ask.status || resp.ProtoMajor != 2 {
			return fmt.Errorf("%s: %s over %s, not %d over HTTP/2", ask.path, resp.Status, resp.Proto, ask.status)
		}
		tag = resp.Header.Get("Etag")
	}
	return nil
}
