package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// identities compares the two ways by which kube-apiserver learns whose a request is, with a caller
// by certificate: what one costs Fairlead, and what it costs kube-apiserver.
func identities() scenario {
	const name, rate = "identity", 500 // kube-apiserver looks a caller's rights up, and for the one who impersonates him as well
	return scenario{name: name, about: "GET 1 KB at 500/s, delegated, by certificate: front-proxy identity and impersonation", run: func(ctx context.Context, w *world, o *options, r *results) error {
		list, err := w.identified(ctx)
		if err != nil {
			return err
		}
		s := gets(8, maxStreams)
		s.rate, s.size = rate, 0
		s.next = func(int, int) load.Request { return load.Request{Path: localPath} }
		for round := range o.rounds {
			for i := range list {
				p := list[(i+round)%len(list)]
				m, err := w.measure(ctx, o, p, s)
				if err != nil {
					return fmt.Errorf("measuring %s: %w", p.name, err)
				}
				r.add(name, p.name, round, m)
			}
		}
		return nil
	}}
}

// identified starts a Fairlead for each way. Each is two peers: one of which its own processor time
// counts, and one of which kube-apiserver's does.
func (w *world) identified(ctx context.Context) ([]*peer, error) {
	account, err := w.Account(ctx, w.Endpoint(), "deploy", "managed")
	if err != nil {
		return nil, err
	}
	pair, err := w.PKI.Client.Issue("bench-user", cluster.Leaf{User: "bench", Groups: []string{"dev", "ops"}})
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		return nil, err
	}
	var list []*peer
	for _, way := range []string{"front-proxy", "impersonate"} {
		p, err := w.another(ctx, "by-"+way, "--local-identity="+way, "--kubeconfig="+account)
		if err != nil {
			return nil, fmt.Errorf("starting Fairlead by %s: %w", way, err)
		}
		p.name, p.tls = way, p.tls.Clone()
		p.tls.Certificates = []tls.Certificate{cert}
		behind := &peer{name: way + ", kube-apiserver", address: p.address, tls: p.tls, part: w.APIServers[0]}
		list = append(list, p, behind)
	}
	return list, nil
}
