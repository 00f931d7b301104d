//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

const (
	// attackers is how many connections a flood has at once.
	attackers = 2
	// again is when an attacker whose connection was ended opens the next: a handshake costs both
	// sides a millisecond of CPU, and the work that a new connection may ask for some 5 ms more.
	// Whoever can open many a second must be stopped below us; that is no question of frames.
	again = 100 * time.Millisecond
	// burst frames a breath is what an attacker sends: 64,000 in a second and connection. More
	// would only show how much CPU the test itself takes from the innocent.
	burst  = 64
	breath = time.Millisecond
	// floodMemory is what a flood may take: see docs/security.md, limits of a connection.
	floodMemory = 96 * mib
)

// flood is one way to keep a server busy for nothing.
type flood struct {
	name     string
	settings []http2.Setting
	// begin is called once for each connection. Nil: nothing.
	begin func(*wire) error
	// step writes a few frames and returns how many.
	step func(w *wire, n int) (int, error)
	// breath is the time from one step to the next, for frames that are work by their size. 0: many
	// steps a millisecond.
	breath time.Duration
	// want is how the engine must end the connection. Empty: it may live.
	want string
}

func floods() []flood {
	const endless = 64 << 20 // a body that is never finished
	post := func(w *wire) error { _, err := w.ask("POST", target, false); return err }
	frame := func(f func(w *wire) error) func(*wire, int) (int, error) {
		return func(w *wire, _ int) (int, error) { return 1, f(w) }
	}
	return []flood{
		{name: "rapid reset (CVE-2023-44487)", want: "ENHANCE_YOUR_CALM", step: func(w *wire, _ int) (int, error) {
			id, err := w.ask("GET", target+"/widget-001", true)
			if err != nil {
				return 0, err
			}
			return 2, w.fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}},
		{name: "made you reset (CVE-2025-8671)", want: "ENHANCE_YOUR_CALM", step: func(w *wire, _ int) (int, error) {
			id, err := w.ask("GET", target+"/widget-001", true)
			if err != nil {
				return 0, err
			}
			return 2, w.fr.WriteWindowUpdate(id, 1<<31-1) // an overflow: the server resets
		}},
		{name: "CONTINUATION without end (CVE-2024-27316)", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			return w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.head("GET", target)})
		}, step: frame(func(w *wire) error { return w.fr.WriteContinuation(1, false, padding(16<<10)) })},
		{name: "empty CONTINUATION", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			return w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.head("GET", target)})
		}, step: frame(func(w *wire) error { return w.fr.WriteContinuation(1, false, nil) })},
		{name: "SETTINGS (CVE-2019-9515)", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WriteSettings() })},
		{name: "PING (CVE-2019-9512)", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WritePing(false, [8]byte{}) })},
		{name: "PING answers nobody asked for", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WritePing(true, [8]byte{}) })},
		{name: "PRIORITY (CVE-2019-9513)", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error {
			return w.fr.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 1})
		})},
		{name: "empty DATA (CVE-2019-9518)", want: "ENHANCE_YOUR_CALM", begin: post, step: frame(func(w *wire) error { return w.fr.WriteData(1, false, nil) })},
		{name: "unknown frames", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WriteRawFrame(0xfe, 0, 0, nil) })},
		{name: "WINDOW_UPDATE by single bytes", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WriteWindowUpdate(0, 1) })},
		{name: "data dribble (CVE-2019-9511)", want: "ENHANCE_YOUR_CALM", settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, begin: func(w *wire) error {
			_, err := w.ask("GET", target, true)
			return err
		}, step: frame(func(w *wire) error { return w.fr.WriteWindowUpdate(1, 1) })},
		{name: "window seesaw", want: "ENHANCE_YOUR_CALM", settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, begin: func(w *wire) error {
			for range 50 { // more would be a burst of requests, which is something else
				if _, err := w.ask("GET", target+"/widget-001", true); err != nil {
					return err
				}
			}
			return nil
		}, step: func(w *wire, n int) (int, error) {
			return 1, w.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n % 2)}) // 0 or 1
		}},
		{name: "HPACK bomb", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			_, err := w.ask("GET", target, true, "x-bomb", strings.Repeat("b", 3900))
			return err
		}, step: func(w *wire, _ int) (int, error) {
			id := w.next
			w.next += 2
			return 1, w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: slices.Repeat([]byte{0x80 | 62}, 4000), EndStream: true, EndHeaders: true}) // 16 MB in 4 KB
		}},
		{name: "huge heads", breath: 50 * time.Millisecond, step: func(w *wire, _ int) (int, error) {
			_, err := w.ask("GET", target+"/widget-001", true, "x-huge", strings.Repeat("\x7e", 150<<10))
			return 1, err
		}},
		{name: "more streams than allowed", step: func(w *wire, _ int) (int, error) {
			_, err := w.ask("POST", target, false)
			return 1, err
		}},
		{name: "bodies that nobody finishes", begin: post, step: func(w *wire, n int) (int, error) {
			if n > endless>>14 {
				return 1, w.fr.WritePing(false, [8]byte{})
			}
			return 1, w.fr.WriteData(1, false, padding(1))
		}},
		{name: "queries that cannot be read", step: func(w *wire, _ int) (int, error) {
			_, err := w.ask("GET", strings.Replace(target, "default", "empty", 1)+"?limit=x&fieldSelector=%21", true)
			return 8, err
		}},
		{name: "wrong credentials", step: func(w *wire, _ int) (int, error) {
			_, err := w.ask("GET", target+"/widget-001", true, "authorization", "Bearer nobody")
			return 1, err
		}},
	}
}

func padding(n int) []byte { return make([]byte, n) }

// toll is what became of a flood.
type toll struct {
	frames, connections atomic.Int64
	mu                  sync.Mutex // guards told
	told                map[string]int
}

// run floods until ctx ends: as fast as the server takes it, and again with a new connection when
// it has had enough.
func (f *flood) run(ctx context.Context, address string, as *tls.Config, y *toll) {
	var all sync.WaitGroup
	defer all.Wait()
	for range attackers {
		all.Go(func() {
			for ctx.Err() == nil {
				if w, err := connect(ctx, address, as, true, f.settings...); err == nil {
					y.connections.Add(1)
					f.converse(ctx, w, y)
					w.close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(again):
				}
			}
		})
	}
}

// converse floods one connection until the server ends it, or ctx.
func (f *flood) converse(ctx context.Context, w *wire, y *toll) {
	if f.begin != nil && f.begin(w) != nil {
		return
	}
	pace := time.NewTicker(max(f.breath, breath))
	defer pace.Stop()
	for n := 0; ctx.Err() == nil; {
		var err error
		for sent := 0; sent < burst && err == nil; {
			var k int
			k, err = f.step(w, n)
			n++
			sent += k
			y.frames.Add(int64(k))
			if f.breath > 0 {
				break
			}
		}
		if err == nil {
			err = w.flush()
		}
		select {
		case <-w.gone:
			err = context.Canceled
		case <-pace.C:
		}
		if err != nil {
			told := w.told()
			y.mu.Lock()
			y.told[told]++
			y.mu.Unlock()
			return
		}
	}
}

func testFloods(t *testing.T, d *door) {
	somebody := d.w.as("attacker")
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			y := &toll{told: map[string]int{}}
			c := d.compare(t, func(ctx context.Context) {
				as := somebody
				if f.name == "wrong credentials" {
					as = d.w.as("")
				}
				f.run(ctx, d.Front, as, y)
			})
			t.Logf("%d frames on %d connections, told %v; %s", y.frames.Load(), y.connections.Load(), slices.Sorted(maps.Keys(y.told)), c)
			c.held(t, floodMemory)
			// Whose user has given up too much is asked to go, which is NO_ERROR, before the
			// connection's own budget is spent.
			if f.want != "" && y.told[f.want]+y.told["NO_ERROR"] == 0 {
				t.Errorf("connections ended with %v, want %s", y.told, f.want)
			}
		})
	}
	d.serves(t, target)
}
