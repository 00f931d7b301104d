package main

import (
	"context"
	"crypto/tls"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// identities compares both values of --local-identity for a caller with a certificate: their cost
// in Fairlead, and in kube-apiserver. It starts a Fairlead for each. Each is two peers: one counts
// Fairlead's processor time, the other kube-apiserver's.
func identities(ctx context.Context, w *world) {
	account := try.Get(w.Account(ctx, w.Endpoint(), "deploy", "managed"))
	proven := w.proven("bench", "dev", "ops")
	var list []*peer
	for _, way := range []string{"front-proxy", "impersonate"} {
		p := w.another(ctx, "by-"+way, "--local-identity="+way, "--kubeconfig="+account)
		p.tls = proven
		behind := p.as(way + ", kube-apiserver")
		behind.part = w.APIServers[0]
		list = append(list, p.as(way), behind)
	}
	// At 500 a second: kube-apiserver authorizes the caller, and also Fairlead if it impersonates
	// the caller.
	c := paced(gets(8, 1), 500)
	c.Size, c.Next = 0, func(int, int) load.Request { return load.Request{Path: localPath} }
	w.compare(ctx, "identity", list, func(*peer) load.Config { return c })
}

// proven returns the TLS configuration of a user with a certificate.
func (w *world) proven(user string, groups ...string) *tls.Config {
	pair := try.Get(w.PKI.Client.Issue("bench-"+user, cluster.Leaf{User: user, Groups: groups}))
	tc := w.tls.Clone()
	tc.Certificates = []tls.Certificate{try.Get(tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile))}
	return tc
}
