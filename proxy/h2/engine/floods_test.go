package engine

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A backend that allows many streams cannot hold up a shard by having all of them visited again and
// again: a GOAWAY that takes back nothing new visits none, and each that takes back more is
// charged. A graceful end is free, with any number of streams.
func TestGoAwayFlood(t *testing.T) {
	for _, tc := range []struct{ clients, accepted int }{{90, 4}, {8, 34}} {
		r, b := crowded(t, tc.clients)
		before, top := len(b.c.streams), b.c.maxID
		b.say("GOAWAY %d NO_ERROR", topStreamID)
		b.say("GOAWAY %d NO_ERROR", top-2)
		if o := r.outcomes; b.c.closing || len(b.c.streams) != before-1 || len(o) != 1 || !strings.Contains(fmt.Sprint(o[0].Err), "GOAWAY") {
			t.Fatalf("%d of %d streams are left after a graceful GOAWAY, closing: %v, ended: %+v", len(b.c.streams), before, b.c.closing, o)
		}
		_ = b.fr.WriteGoAway(top-2, http2.ErrCodeNo, nil)
		same := bytes.Clone(b.to.Bytes())
		b.to.Reset()
		if n := testing.AllocsPerRun(10, func() { r.e.Feed(b.c, same) }); n > 0 { // the ids of all streams are a slice
			t.Errorf("%v allocations for a GOAWAY that takes back nothing", n)
		}
		n := 0
		for ; n < 100; n++ {
			if b.say("GOAWAY %d NO_ERROR", top-4-2*uint32(n)); b.c.closing {
				break
			}
			if got := len(b.c.streams); got != before-2-n {
				t.Fatalf("%d of %d streams are left after %d GOAWAYs", got, before, n)
			}
		}
		if n != tc.accepted {
			t.Errorf("%d more GOAWAYs each visited %d streams", n, before)
		}
	}
}

// crowded returns a backend's connection with the requests of many clients.
func crowded(t *testing.T, clients int) (r *rig, b *peer) {
	const each = 250
	r = newRig(t)
	r.client().get(1)
	r.backend(0).say("SETTINGS MAX_CONCURRENT_STREAMS=%d", uint32(clients*each))
	for range clients {
		r.client().gets(1, 2*each-1)
	}
	b = r.backends[0]
	for _, other := range r.backends {
		if len(other.c.streams) > len(b.c.streams) {
			b = other
		}
	}
	return r, b
}

// A backend that ends each connection after its SETTINGS, without taking a request or after refusing those it got, is
// dialed at a bounded rate. The requests that wait get no answer, and use up no retries.
func TestBackendThatOnlyGreets(t *testing.T) {
	for _, tc := range []struct {
		name  string
		greet func(b *peer)
	}{
		{"takes no stream and goes", func(b *peer) {
			b.say("SETTINGS MAX_CONCURRENT_STREAMS=0 | GOAWAY 0 NO_ERROR")
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
