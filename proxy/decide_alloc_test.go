package proxy

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// What a client-go controller sends, with a service account's token.
func usualHead() *Head {
	return &Head{
		Method: "GET", Authority: "127.0.0.1:6443", Path: remoteGV + "/namespaces/default/widgets/one", RemoteIP: "192.0.2.1",
		Fields: []hpack.HeaderField{
			{Name: "accept", Value: "application/json"}, {Name: "user-agent", Value: "controller/1 (linux/amd64) kubernetes/unknown"},
			{Name: "accept-encoding", Value: "gzip"}, {Name: "authorization", Value: "Bearer token-of-" + strings.Repeat("x", 900)},
		},
	}
}

// decision is decide's, made anew.
func (p *Proxy) decision(ctx context.Context, h *Head, c *authn.Conn, wait bool) (d Decision, known bool) {
	known = p.decide(ctx, &d, h, c, wait)
	return d, known
}

// A decision that needs no I/O allocates its Audit-ID and X-Forwarded fields, and nothing else.
func TestDecideAllocates(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h, c := usualHead(), &authn.Conn{}
	if d, _ := w.proxy.decision(t.Context(), h, c, true); d.Action != ToRemote {
		t.Fatalf("%v: %v", d.Action, d.Err)
	}
	allocatesTheAuditID(t, w.proxy, h, c)
}

// allocatesTheAuditID checks that a decision that needs no I/O allocates nothing else.
func allocatesTheAuditID(t *testing.T, p *Proxy, h *Head, c *authn.Conn) {
	t.Helper()
	var d Decision
	if n := testing.AllocsPerRun(1000, func() {
		if !p.decide(t.Context(), &d, h, c, false) {
			t.Fatal("not known")
		}
	}); n > 1 {
		t.Errorf("%v: %v allocations, want 1: the Audit-ID", h.Fields, n)
	}

}
