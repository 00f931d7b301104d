//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const (
	attackers = 2 // the number of a flood's concurrent connections
	// again is when an attacker reconnects after its connection was ended: a handshake uses 1 ms of
	// CPU on both sides, and the work that a new connection may cause some 5 ms more. Many new
	// connections a second are no matter of frames, and have to be stopped outside Fairlead.
	again = 100 * time.Millisecond
	// An attacker sends burst frames per breath: 64,000 a second per connection. More would only
	// show how much CPU the test itself takes from the innocents.
	burst       = 64
	breath      = time.Millisecond
	floodBound  = othersTake // how much slower others' 99th percentile may be
	floodMemory = 96 * mib   // how much memory a flood may use: see docs/security.md, limits of a connection
)

// flood is one way to keep a server busy.
type flood struct {
	name     string
	settings []http2.Setting
	begin    func(*wire) error // called once per connection, unless it is nil
	// step writes a few frames and returns how many.
	step func(w *wire, n int) (int, error)
	// breath is the interval of steps, for frames whose size makes them expensive. 0: many steps per millisecond.
	breath time.Duration
	want   string // how the engine must end the connection, or empty if it may stay open
}

// floods has one of each class of proxy/h2/engine's floods.txtar.
func floods() []flood {
	const endless = 64 << 20 // a body that never ends
	post := func(w *wire) error { _, err := w.ask("POST", target, false); return err }
	frame := func(f func(w *wire) error) func(*wire, int) (int, error) {
		return func(w *wire, _ int) (int, error) { return 1, f(w) }
	}
	return []flood{
		{name: "rapid reset (CVE-2023-44487)", want: "ENHANCE_YOUR_CALM", step: func(w *wire, _ int) (int, error) {
			id, err := w.ask("GET", target+"/widget-001", true)
			return 2, errors.Join(err, w.fr.WriteRSTStream(id, http2.ErrCodeCancel))
		}},
		{name: "made you reset (CVE-2025-8671)", want: "ENHANCE_YOUR_CALM", step: func(w *wire, _ int) (int, error) {
			id, err := w.ask("GET", target+"/widget-001", true)
			return 2, errors.Join(err, w.fr.WriteWindowUpdate(id, 1<<31-1)) // an overflow: the server resets
		}},
		{name: "CONTINUATION without end (CVE-2024-27316)", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			return w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: w.head("GET", target)})
		}, step: frame(func(w *wire) error { return w.fr.WriteContinuation(1, false, padding(16<<10)) })},
		{name: "PING (CVE-2019-9512)", want: "ENHANCE_YOUR_CALM", step: frame(func(w *wire) error { return w.fr.WritePing(false, [8]byte{}) })},
		{name: "data dribble (CVE-2019-9511)", want: "ENHANCE_YOUR_CALM", settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, begin: func(w *wire) error {
			_, err := w.ask("GET", target, true)
			return err
		}, step: frame(func(w *wire) error { return w.fr.WriteWindowUpdate(1, 1) })},
		{name: "WINDOW_UPDATE on a stream that has ended", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			_, err := w.ask("GET", target+"/widget-001", true)
			return err
		}, step: frame(func(w *wire) error { return w.fr.WriteWindowUpdate(1, 1) })},
		{name: "DATA on a stream that was reset", want: "ENHANCE_YOUR_CALM", begin: func(w *wire) error {
			return errors.Join(post(w), w.fr.WriteWindowUpdate(1, 1<<31-1)) // the server resets
		}, step: frame(func(w *wire) error { return w.fr.WriteData(1, false, padding(1)) })},
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
		{name: "bodies that nobody finishes", begin: post, step: func(w *wire, n int) (int, error) {
			if n > endless>>14 {
				return 1, w.fr.WritePing(false, [8]byte{})
			}
			return 1, w.fr.WriteData(1, false, padding(1))
		}},
		{name: "16 bytes of DATA with 250 of padding", begin: post, step: frame(func(w *wire) error { return w.fr.WriteDataPadded(1, false, padding(16), padding(250)) })},
		{name: "watches opened and closed", breath: 20 * time.Millisecond, step: func(w *wire, _ int) (int, error) {
			id, err := w.ask("GET", target+"?watch=1", true)
			if err = errors.Join(err, w.flush()); err == nil {
				select {
				case <-w.answers:
				case <-w.gone:
				}
				err = w.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			return 1, err
		}},
		{name: "windows of 20 answers, up and down", want: "ENHANCE_YOUR_CALM", settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, begin: func(w *wire) (err error) {
			for i := 0; i < 20 && err == nil; i++ {
				_, err = w.ask("GET", target+"/widget-001", true)
			}
			return err
		}, step: func(w *wire, n int) (int, error) {
			return 1, w.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n % 2)})
		}},
		{name: "wrong credentials", step: func(w *wire, _ int) (int, error) {
			_, err := w.ask("GET", target+"/widget-001", true, "authorization", "Bearer nobody")
			return 1, err
		}},
	}
}

func padding(n int) []byte { return make([]byte, n) }

// run floods until ctx ends: as fast as the server reads, and with a new connection after each that
// it ends. Expensive steps of the connections alternate. ends keeps how the server ended them.
func (f *flood) run(ctx context.Context, address string, as *tls.Config, attackers int, ends *sync.Map) {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range attackers {
		all.Go(func() {
			for next := f.breath * time.Duration(i) / time.Duration(attackers); ; next = again {
				select {
				case <-ctx.Done():
					return
				case <-time.After(next):
				}
				if w, err := connect(ctx, address, as, true, f.settings...); err == nil {
					f.converse(ctx, w, ends)
					w.close()
				}
			}
		})
	}
}

// converse floods one connection until the server or ctx ends it.
func (f *flood) converse(ctx context.Context, w *wire, ends *sync.Map) {
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
		case <-ctx.Done():
		}
		if err != nil {
			ends.Store(w.ending(), nil)
			return
		}
	}
}

func testFloods(t *testing.T, d *door) {
	somebody := d.w.as("attacker")
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			ends := new(sync.Map)
			c := d.innocents().compare(t, 0.99, func(ctx context.Context) {
				as := somebody
				if f.name == "wrong credentials" {
					as = d.w.as("")
				}
				f.run(ctx, d.Front, as, attackers, ends)
			})
			c.held(t, median, floodBound, floodMemory)
			// A user who gives up too many requests is sent GOAWAY with NO_ERROR, before the budget
			// of the connection is spent.
			_, calmed := ends.Load(f.want)
			_, left := ends.Load("NO_ERROR")
			if f.want != "" && !calmed && !left {
				t.Errorf("no connection ended with %s", f.want)
			}
		})
	}
	d.serves(t, target)
}

const (
	strangerBound  = 50 * time.Millisecond // how much longer others' slowest answer may take
	strangerMemory = 64 * mib              // how much memory a stranger may use
)

// One attacker with sixteen connections cannot stop other users of a real kube-apiserver, nor
// strangers with new tokens.
func TestStrangers(t *testing.T) {
	h := newHarbour(t, newWorld(t), false)
	must.Do(t, h.remote.Set(extension.Fault{Kind: extension.Slow, Delay: othersTake, Path: remotePath}))
	user := func(name string) *tls.Config { return h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: name})) }
	others := &innocents{h.front.Part.PID(), client(user("innocent"), "h2"), h.front.Endpoint.URL + remotePath + "/widget-001"}
	for _, a := range []struct {
		as *tls.Config
		flood
	}{
		// Unproven callers' places are taken by uploads without data.
		{h.tls(nil), holds("uploads that send nothing", "/api/v1/namespaces/x/pods")},
		{h.tls(nil), holds("long-running uploads", "/api/v1/namespaces/x/pods/y/exec")},
		{user("attacker"), holds("uploads to a remote", remotePath)},
		{h.tls(nil), gets("odd paths", "/%61"+strings.Repeat("/", 240_000))},
		{h.tls(nil), gets("dotted paths", remotePath+strings.Repeat("/%2e%2e/a", 26_000))},
		{user("attacker"), gets("long selectors", remotePath+"?labelSelector=a"+strings.Repeat("%2Cb", 60_000))},
		// Each is a new SubjectAccessReview. Sixteen times as many a second use a quarter of a
		// processor in kube-apiserver.
		{user("nobody"), flood{name: "names that nobody asked for", breath: time.Second, step: func(w *wire, n int) (int, error) {
			for i := range 50 {
				if _, err := w.ask("GET", fmt.Sprintf("/apis/mirror.example.com/v1/namespaces/other/secrets/%d-%d", n, i), true); err != nil {
					return i, err
				}
			}
			return 50, nil
		}}},
		// Heads of a few bytes that decode to 234 KB each.
		{user("attacker"), flood{name: "heads that unpack", breath: time.Second / 4, step: func(w *wire, _ int) (int, error) {
			fields := slices.Repeat([]string{"x-large", strings.Repeat("l", 3900)}, 60)
			for i := range 8 {
				if _, err := w.ask("GET", remotePath+"/widget-001", true, fields...); err != nil {
					return i, err
				}
			}
			return 8, nil
		}}},
	} {
		t.Run(a.name, func(t *testing.T) {
			tokens := h.mint(t, 2*windows)
			c := others.compare(t, 1, func(ctx context.Context) {
				var attack sync.WaitGroup
				defer attack.Wait()
				attack.Go(func() { a.run(ctx, strings.TrimPrefix(h.front.Endpoint.URL, "https://"), a.as, 16, new(sync.Map)) })
				// Requests that need no place, and requests with unused tokens.
				for path, token := range map[string]string{"/readyz": "", remotePath + "/widget-001": tokens[0], "/version": tokens[1]} {
					c := client(h.tls(nil), "h2")
					if reply, err := ask.Do(t.Context(), c, http.MethodGet, h.front.Endpoint.URL+path, ask.Bearer(token), ""); err != nil || reply.Code != http.StatusOK {
						t.Errorf("%s with a new token returned %d: %v", path, reply.Code, err)
					}
					c.CloseIdleConnections()
				}
				tokens = tokens[2:]
			})
			c.held(t, slices.Max, strangerBound, strangerMemory)
		})
	}
}

// gets requests one path again and again.
func gets(name, path string) flood {
	return flood{name: name, breath: time.Second, step: func(w *wire, _ int) (int, error) { _, err := w.ask("GET", path, true); return 1, err }}
}

// holds opens 200 uploads and sends nothing more.
func holds(name, path string) flood {
	begin := func(w *wire) error {
		for range 200 {
			if _, err := w.ask("POST", path, false, "content-length", "100", "content-type", "application/json"); err != nil {
				return err
			}
		}
		return nil
	}
	return flood{name: name, begin: begin, breath: 10 * time.Millisecond, step: func(*wire, int) (int, error) { return 0, nil }}
}
