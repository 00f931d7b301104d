package engine

import (
	"testing"

	"golang.org/x/net/http2"
)

// A head with a Content-Length is sent together with the body's first bytes, or when something else
// is.
func TestHeldHeadEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		by   func(r *rig, c, b *peer)
		want []string
	}{
		{"body", func(_ *rig, _, b *peer) { b.data(1, "body", true) }, []string{`DATA 1 "body" END`}},
		{"tick", func(r *rig, _, _ *peer) { r.tick(TickEvery) }, nil},
		{"another response", func(_ *rig, _, b *peer) { b.headers(3, true, ":status=204"); b.flush() }, []string{"HEADERS 3 :status=204 END"}},
		{"ping", func(_ *rig, c, _ *peer) { _ = c.fr.WritePing(false, [8]byte{'p'}); c.flush() }, []string{"PING p\x00\x00\x00\x00\x00\x00\x00 ACK"}},
		{"reset", func(_ *rig, _, b *peer) { b.rst(1, http2.ErrCodeInternal) }, []string{"RST 1 INTERNAL_ERROR"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, c := newClient(t)
			c.get(1)
			c.get(3)
			b := r.backend(0)
			b.send(1, false, ":status=200", "content-length=4")
			c.want()
			tc.by(r, c, b)
			c.want(append([]string{"HEADERS 1 :status=200 content-length=4"}, tc.want...)...)
		})
	}
}

// A head that the client may be waiting for is sent at once.
func TestHeadThatDoesNotWait(t *testing.T) {
	const length = "content-length=4"
	for _, tc := range []struct {
		name  string
		watch bool
		ask   func(c *peer)
		head  []string
		want  string
	}{
		{"no length", false, func(c *peer) { c.get(1) }, []string{":status=200"}, "HEADERS 1 :status=200"},
		{"upload goes on", false, func(c *peer) { c.request(1, "POST", false) }, []string{":status=200", length}, "HEADERS 1 :status=200 " + length},
		{"watch", true, func(c *peer) { c.get(1) }, []string{":status=200", length}, "HEADERS 1 :status=200 " + length},
		{"HEAD", false, func(c *peer) { c.request(1, "HEAD", true) }, []string{":status=200", length}, "HEADERS 1 :status=200 " + length},
		{"no window", false, func(c *peer) {
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.get(1)
			c.want("SETTINGS ACK")
		}, []string{":status=200", length}, "HEADERS 1 :status=200 " + length},
		{"empty body", false, func(c *peer) { c.get(1) }, []string{":status=200", "content-length=0"}, "HEADERS 1 :status=200 content-length=0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.plan.LongRunning = tc.watch
			c := r.client()
			tc.ask(c)
			b := r.backend(0)
			b.send(1, false, tc.head...)
			c.want(tc.want)
		})
	}
}
