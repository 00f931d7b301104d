package proxy

import (
	"crypto/x509"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A decision that needs no I/O allocates nothing, with impersonation or without. Nor does what is asked about the
// request's fields, which have no underscore, and about its answer.
func TestDecideAllocates(t *testing.T) {
	for _, tc := range []struct {
		name        string
		impersonate bool
		path, token string // else a certificate
		want        Action
	}{
		{"a watch", false, remoteGV + "/widgets?allowWatchBookmarks=true&watch=true", usualHead().get("authorization"), ToRemote},
		{"token", false, usualHead().Path, usualHead().get("authorization"), ToRemote},
		{"certificate", false, usualHead().Path, "", ToRemote},
		{"JWT, impersonated", true, "/api/v1/pods", "Bearer jwt.of.dave", ToLocal},
		{"certificate, impersonated", true, "/api/v1/pods", "", ToLocal},
	} {
		w, p := thinker(t, worldConfig{impersonate: tc.impersonate})
		h, c := usualHead(), &authn.Conn{}
		h.SetTarget(tc.path)
		if h.Fields[3].Value = tc.token; tc.token == "" {
			c.Peer = []*x509.Certificate{w.client.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}}).Certificate}
		}
		d, _ := p.decision(t.Context(), h, c, true)
		check.Same(t, true, d.Action == tc.want && (!tc.impersonate || d.Pool == authn.PoolImpersonate), "%s: %v: %v", tc.name, d.Action, d.Err)
		x := &exchange{p: p, head: h}
		check.Same(t, 0, check.Allocations(func() {
			if err := p.decide(&x.decision, h, c, h.Arrived); err != nil {
				t.Fatal(err)
			}
			for i := range h.Fields {
				x.removes(h.Fields[i].Name)
			}
			authn.CutProtocol("v4.channel.k8s.io, v3.channel.k8s.io")
			p.cfg.Authn.Seen(&x.decision.Credentials, 200)
		}), "%s: allocations", tc.name)
	}
}
