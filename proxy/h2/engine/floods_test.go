package engine

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
		o := r.outcomes
		check.Same(t, true, !b.c.closing && len(b.c.streams) == before-1 && len(o) == 1 && strings.Contains(fmt.Sprint(o[0].Err), "GOAWAY"), "%d of %d streams are left after a graceful GOAWAY, closing: %v, ended: %+v", len(b.c.streams), before, b.c.closing, o)
		_ = b.fr.WriteGoAway(top-2, http2.ErrCodeNo, nil)
		same := bytes.Clone(b.to.Bytes())
		b.to.Reset()
		// The ids of all streams are a slice.
		check.Same(t, 0, testing.AllocsPerRun(10, func() { r.e.Feed(b.c, same) }), "allocations for a GOAWAY that takes back nothing")
		n := 0
		for ; n < 100; n++ {
			if b.say("GOAWAY %d NO_ERROR", top-4-2*uint32(n)); b.c.closing {
				break
			}
			check.Same(t, before-2-n, len(b.c.streams), "streams left of %d after %d GOAWAYs", before, n)
		}
		check.Same(t, tc.accepted, n, "more GOAWAYs that each visit %d streams", before)
	}
}

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
		{"takes no stream and goes", func(b *peer) { b.say("SETTINGS MAX_CONCURRENT_STREAMS=0 | GOAWAY 0 NO_ERROR") }},
		{"says that it takes one, refuses it, and goes", func(b *peer) {
			b.say("SETTINGS MAX_CONCURRENT_STREAMS=1")
			_ = b.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
			for id := range b.c.streams {
				_ = b.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream)
			}
			_ = b.fr.WriteGoAway(b.c.maxID, http2.ErrCodeNo, nil)
		}},
	} {
		r := newRig(t)
		r.heldDial = true
		r.client().gets(1, 39)
		dials := 0
		for end := r.e.now + 10*time.Second; r.e.now < end; r.tick(50 * time.Millisecond) {
			for n := 0; n < 20 && len(r.held) > 0; n++ { // a handshake takes 2.5 ms
				dials++
				b := r.dialEnds(nil)
				tc.greet(b)
				b.flush()
			}
		}
		check.Within(t, 0, 10*maxDialing*5, dials, "%s: dials in 10 s", tc.name)
	}
}

// A handler's watch that is closed at once is charged, also if it was answered: it may have a connection of its own.
func TestWatchesOfHandlersFlood(t *testing.T) {
	r, c := newClient(t)
	r.decide = func(*wire.Head, func(Plan)) (Plan, bool) {
		return Plan{LongRunning: true, Serve: http.NotFoundHandler()}, true
	}
	n := 0
	for ; n < 1000 && !c.c.closing; n++ {
		c.get(uint32(2*n + 1))
		r.locals[n].Head(http.StatusOK, []hpack.HeaderField{field(":status", "200")})
		c.say("RST %d CANCEL", 2*n+1)
	}
	check.Within(t, 400, 500, n, "watches until the connection ends")
}

// A field block of tiny fields, each of which moves the whole table, or of updates of the table, is charged before it
// is decoded, wherever either side sends it: 960 KiB of them took 190 ms under the mutex, at the price of 64 frames.
func TestTinyFields(t *testing.T) {
	for name, unit := range map[string]string{
		"fields without a value": "\x7a\x00", "fields of a letter": "\x40\x01a\x01b", "fields of the table": "\xba", "updates of the table": "\x20",
	} {
		for _, size := range []int{minMaxFrame, 240 << 10, 960 << 10} {
			r, c := newClient(t)
			c.get(1)
			for side, p := range map[string]*peer{"a client's ": c, "a backend's ": r.backend(0)} {
				id, sent := uint32(1), 0
				for ; !p.c.closing && sent < 4<<20; sent += size {
					if p == c {
						id += 2
					}
					r.e.Feed(p.c, written(func(f *http2.Framer) {
						pieces(f, id, p == c, bytes.Repeat([]byte(unit), size/len(unit)), minMaxFrame, 0)
					}))
				}
				check.Within(t, 0, max(size, 500<<10), sent, "%s%s: bytes in blocks of %d until the connection ends", side, name, size)
				check.Same(t, true, p.c.dec == nil, "%s%s: what has ended holds no decoder", side, name)
			}
		}
	}
}

// Of a section with too many names the rest is dropped. So it is no part of an answer, whatever it is.
func TestTooManyNames(t *testing.T) {
	for at, refused := range map[string]string{":status=103": ":status=502", ":status=200": ":status=502", "": "RST 1"} {
		for n, want := range map[int]string{wire.MaxNames: "HEADERS 1 " + at, wire.MaxNames + 1: refused} {
			_, c, b := asked(t)
			head := strings.Fields(at)
			if at == "" {
				b.send(1, false, ":status=200")
				c.see()
			}
			for i := range n {
				head = append(head, fmt.Sprintf("x-%d=1", i))
			}
			b.send(1, at != ":status=103", head...)
			seen := c.told("")
			check.Same(t, true, strings.Contains(seen, want), "%d names with %q became %.40s, want %s", n, at, seen, want)
		}
	}
}
