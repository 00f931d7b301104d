package engine

import (
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// TestStalls stalls a client or a backend at every point of a stream's life. The stream holds a
// bounded number of bytes, and another stream is served as usual, on the same connections unless
// they are stuck. The stalled stream continues when its peers do.
func TestStalls(t *testing.T) {
	const big = 4 << 20 // far more than any window
	tests := []struct {
		name string
		// stall stalls stream 1 of client p, and returns a function that lets it continue; nil:
		// nothing does.
		stall func(r *rig, p *peer) func()
		// own is set if the client's whole connection is stuck; other requests then use another
		// one.
		own bool
		// back is set if the backend's connection is stuck; other requests then use another
		// endpoint.
		back bool
	}{
		{name: "client that opens no window", stall: func(r *rig, p *peer) func() {
			p.grow(0, big)
			p.get(1)
			return sendBig(r, big, func() { p.grow(1, big) })
		}},
		{name: "client that takes no output", own: true, stall: func(r *rig, p *peer) func() {
			p.grow(0, big)
			p.get(1)
			p.grow(1, big)
			p.silent = true
			return sendBig(r, big, func() { p.silent = false; p.take(); r.run() })
		}},
		{name: "backend that is not there yet", back: true, stall: func(r *rig, p *peer) func() {
			r.heldDial = true
			p.request(1, "POST", false)
			p.upload(1, big)
			r.heldDial = false
			return nil
		}},
		{name: "backend that opens no window", stall: func(r *rig, p *peer) func() {
			p.request(1, "POST", false)
			b := r.backend(0)
			p.upload(1, big)
			return func() { b.respond(1, "enough"); p.rst(1, http2.ErrCodeCancel) } // cancels its upload
		}},
		{name: "backend that takes no output", back: true, stall: func(r *rig, p *peer) func() {
			p.request(1, "POST", false)
			b := r.backend(0)
			b.grow(0, big)
			b.grow(1, big)
			b.silent = true
			p.upload(1, big)
			return nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			p := r.client()
			resume := tt.stall(r, p)
			held := r.e.Count.Queued.Load() + r.e.Count.Output.Load() + int64(len(p.c.out)+len(p.c.in)+len(p.c.block))
			if bound := int64(r.e.lim.streamWindow) + int64(r.e.lim.writeLimit); held > bound {
				t.Errorf("%d bytes are held, at most %d", held, bound)
			}
			other, id := p, uint32(3)
			if tt.own {
				other, id = r.client(), 1
			}
			if tt.back {
				second := r.endpoint("second")
				r.decide = func(*wire.Head, func(Plan)) (Plan, bool) { return r.forward(second), true }
			}
			p.see()
			for range 20 {
				other.get(id)
				b := r.backend(len(r.backends) - 1)
				b.see()
				b.respond(b.c.maxID, "fine")
				got := strings.Join(other.see(), "\n")
				if !strings.Contains(got, `fine" END`) {
					t.Fatalf("another stream saw\n%s", got)
				}
				id += 2
			}
			if resume == nil {
				return
			}
			resume()
			p.wantPart(" END") // it continues
			r.clean()
		})
	}
}

// grow credits the engine's window.
func (p *peer) grow(id uint32, n int) {
	_ = p.fr.WriteWindowUpdate(id, uint32(n))
	p.flush()
}

// upload sends up to n bytes of a body, as far as the engine's windows allow.
func (p *peer) upload(id uint32, n int) {
	for n > 0 {
		s := p.c.streams[id]
		if s == nil {
			return
		}
		k := min(n, minMaxFrame, int(s.half[up].recv), int(p.c.recv))
		if k <= 0 {
			return
		}
		p.data(id, strings.Repeat("u", k), false)
		n -= k
	}
}

// sendBig answers stream 1 with up to n bytes, as far as the engine's windows allow. The returned
// function calls release and sends the rest.
func sendBig(r *rig, n int, release func()) func() {
	b := r.backend(0)
	b.begin(1)
	send := func() {
		for n > 0 {
			s := b.c.streams[1]
			if s == nil {
				return
			}
			k := min(n, minMaxFrame, int(s.half[down].recv), int(b.c.recv))
			if k <= 0 {
				return
			}
			n -= k
			b.data(1, strings.Repeat("d", k), n == 0)
		}
	}
	send()
	return func() {
		release()
		for range 100 { // the client credits the connection's window as it reads
			r.peers[0].grow(0, 1<<20)
			send()
			if n == 0 {
				return
			}
		}
	}
}
