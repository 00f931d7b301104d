package engine

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Attacks tried after the engine's bounds were set; docs/evidence/attacks.md lists them ("A second,
// independent review").

// A backend that ends each connection after its SETTINGS, without taking a request or after refusing those it got, is
// dialed at a bounded rate. The requests that wait get no answer, and use up no retries.
func TestBackendThatOnlyGreets(t *testing.T) {
	for _, tc := range []struct {
		name  string
		greet func(b *peer)
	}{
		{"takes no stream and goes", func(b *peer) {
			_ = b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
			_ = b.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
		}},
		{"says that it takes one, refuses it, and goes", func(b *peer) {
			b.say("SETTINGS MAX_CONCURRENT_STREAMS=1")
			_ = b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
			for id := range b.c.streams {
				_ = b.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			}
			_ = b.fr.WriteGoAway(b.c.maxID, http2.ErrCodeNo, nil)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.heldDial = true
			c := r.client()
			c.gets(1, 39)
			dials := 0
			for end := r.e.now + 10*time.Second; r.e.now < end; r.tick(50 * time.Millisecond) {
				for range 20 { // a handshake takes 2.5 ms
					if len(r.held) == 0 {
						break
					}
					dials++
					b := r.dialEnds(nil)
					tc.greet(b)
					b.flush()
				}
			}
			if most := 10 * maxDialing * 5; dials > most {
				t.Errorf("%d dials in 10 s, at most %d", dials, most)
			}
			r.heldDial, r.held = false, nil
		})
	}
}

// A shared connection is not charged for a client's behavior: a client that cancels as fast as it
// may, and sends bodies byte by byte, does not end it, even if the backend returns the credit of
// each byte. Nor does one that asks again and again for what the backend answers wrongly.
func TestSharedConnectionOutlivesClients(t *testing.T) {
	for name, ask := range map[string]func(c, b *peer, id uint32){
		"cancel": func(c, b *peer, id uint32) {
			c.request(id, "POST", false)
			c.data(id, "x", false)
			sent := b.c.maxID
			c.say("RST %d CANCEL", id)
			b.headers(sent, true, ":status=200") // crosses the client's reset
			_ = b.fr.WriteRSTStream(sent, http2.ErrCodeNo)
			b.flush()
		},
		"small frames": func(c, b *peer, id uint32) {
			c.request(id, "POST", false)
			c.data(id, "x", false)
			_ = b.fr.WriteWindowUpdate(0, 1)
			_ = b.fr.WriteWindowUpdate(b.c.maxID, 1)
			c.data(id, "", true)
			b.respond(b.c.maxID, "ok")
		},
		"bad answers": func(c, b *peer, id uint32) {
			c.get(id)
			b.headers(b.c.maxID, false, ":status=200", "content-length=9") // Go's servers allow a shorter body
			b.data(b.c.maxID, "hello", true)
		},
	} {
		t.Run(name, func(t *testing.T) { outlives(t, ask) })
	}
}

// outlives checks that a watch on the same connection to a backend continues.
func outlives(t *testing.T, ask func(c, b *peer, id uint32)) {
	t.Helper()
	r := newRig(t)
	watcher := r.client()
	r.plan.LongRunning = true
	watcher.get(1)
	b := r.backend(0)
	b.say("HEADERS 1 :status=200")
	r.plan.LongRunning = false
	for i := range 20 {
		c := r.client()
		for id := uint32(1); id < 800 && !c.c.closing; id += 2 {
			ask(c, b, id)
		}
		if b.c.closing {
			t.Fatalf("the shared connection was ended after %d clients: %s", i, fmt.Sprint(b.see()))
		}
	}
	_ = b.fr.WriteData(1, false, []byte("event\n"))
	b.flush()
	watcher.wantPart(`event`)
}
