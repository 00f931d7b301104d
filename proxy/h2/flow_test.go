package h2

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A connection whose long-running streams are being ended still carries others: its peer's death is noticed.
func TestSilenceIsFoundAfterCut(t *testing.T) {
	t.Run("retired backend", func(t *testing.T) {
		r := newRig(t)
		c := r.client()
		c.get(1)
		b := r.backend(0)
		b.see()
		r.e.retire(r.ep, time.Second)
		r.tick(2 * time.Second)
		b.silent = true
		r.tick(2 * defaultPing)
		if !b.c.closing {
			t.Error("a silent backend is kept after its watches' time")
		}
		if got := strings.Join(c.see(), "|"); !strings.Contains(got, ":status=503") {
			t.Errorf("the client sees %q", got)
		}
	})
	t.Run("client of a server that drains", func(t *testing.T) {
		r := newRig(t)
		c := r.client()
		c.get(1)
		r.e.drain(time.Second)
		r.tick(2 * time.Second)
		c.see()
		for range int(2 * (r.e.lim.ping + r.e.lim.pong) / time.Second) {
			r.tick(time.Second)
			_ = r.backend(0).fr.WritePing(true, [8]byte{})
			r.backend(0).flush()
		}
		if !slices.Contains(c.see(), "PING fairlead") || !c.c.closing {
			t.Errorf("a silent client is kept after the drain's grace")
		}
	})
}
