package engine

import "time"

// Windows grow with the peer's distance. A sender can use only one window per round trip, however fast the line is: 256
// KiB are 5 MB/s from a peer 50 ms away. The time in which a peer uses up a window measures the round trip.

const (
	near   = 2 * time.Millisecond // a distance for which the first window is wide enough: 128 MB/s
	far    = time.Second          // longer than any round trip: a window that lasts longer was not the limit
	rest   = 5 * time.Second      // how long a window stays wide without being used well
	widest = 16 << 20             // allows 80 MB/s from the other side of the world (200 ms)
	// growth is the factor by which a window grows in a round trip: after two of them a stream's is
	// as wide as the 4 MiB that Go's client begins with.
	growth = 4
	// minSharers leaves room for others while few streams are wide: with the default bound one stream gets 8 MiB.
	// Long-running streams become only a little wider: after an initial list they keep what they do not use.
	minSharers = 16
)

// meter measures how long a peer takes to use a window up.
type meter struct {
	at   time.Duration // when the window was updated; 0 means that nothing is measured
	left int32         // what is left of the window
}

// start begins a measurement at an update after which the peer may send left bytes. False: one is under way.
func (m *meter) start(now time.Duration, left int32) bool {
	if m.at > 0 && now-m.at <= far {
		return false
	}
	m.at, m.left = now, left
	return true
}

// received counts n bytes. It returns how long the window has lasted, or 0 if some of it is left.
func (m *meter) received(now time.Duration, n int32) time.Duration {
	if m.at == 0 {
		return 0
	}
	m.left -= n
	if m.left > 0 {
		return 0
	}
	took := now - m.at
	m.at = 0
	return took
}

// reach is what a connection knows of its peer's distance, and the resulting windows.
type reach struct {
	shortest time.Duration // the shortest round trip; 0 means unknown
	seen     time.Duration // when a window was last used well
	all      meter         // of the connection's window
	one      meter         // of the window of stream id
	id       uint32
	conn     int32 // the connection's window; 0 means the initial one
	stream   int32 // the window for a stream that uses it well; 0 means the initial one
	promised int64 // how much wider than initially all streams' windows are together
	wide     int32 // how many streams' windows are wider
}

// judge returns the new size of a window of size bytes that lasted for took. It never shrinks a
// window: one slow stream says nothing about the others.
func (r *reach) judge(now, took time.Duration, size int32) int32 {
	if took < near || took > far {
		return size
	}
	if r.shortest == 0 || took < r.shortest {
		r.shortest = took
	}
	if took > 2*growth*r.shortest {
		return size // an eighth of it would be enough
	}
	r.seen = now
	if took > 2*r.shortest {
		return size
	}
	return max(size, min(size*growth, widest))
}

// rest forgets the distance of a peer that has not used its windows well for a while.
func (r *reach) rest(now time.Duration) {
	if r.stream > 0 && now-r.seen > rest {
		r.stream, r.shortest = 0, 0
	}
}

// received accounts for a DATA frame of n bytes in the connection's window.
func (c *Conn) received(n int32) {
	took := c.reach.all.received(c.e.now, n)
	if took == 0 || c.side == down { // no line fills the window of a backend's connection
		return
	}
	size := max(clientWindow, c.reach.conn) // what it is when all bytes are credited
	c.reach.conn = c.reach.judge(c.e.now, took, size)
	c.credit += c.reach.conn - size
}

// streamReceived accounts for a DATA frame of n bytes in a stream's window.
func (c *Conn) streamReceived(id uint32, h *half, n int32) {
	r := &c.reach
	if r.id != id {
		return
	}
	took := r.one.received(c.e.now, n)
	if took == 0 || !h.keepsUp() {
		return
	}
	if size := r.judge(c.e.now, took, h.full); size > h.full {
		r.stream = max(r.stream, size)
	}
}

// keepsUp reports whether the receiver reads fast enough: otherwise a wider window only fills up.
func (h *half) keepsUp() bool { return h.q.size <= int(h.full)/2 && !h.discard }

// fit adjusts a stream's window. All wide windows get equal shares of what the connection may
// promise. A promise is never broken: a window that is too wide gets no credit until it was used.
func (c *Conn) fit(s *stream, h *half) {
	r, first := &c.reach, streamWindow
	if r.stream == 0 && h.full == first {
		return
	}
	extra := int64(h.full - first)
	sharers := int64(r.wide)
	if extra == 0 {
		sharers++
	}
	most := r.stream
	if s.plan.LongRunning {
		most = min(most, growth*first)
	}
	room := c.e.Memory.Room()
	want := first + int32(max(0, min(int64(most-first), room/max(sharers, minSharers), room-r.promised+extra)))
	if h.full > want {
		c.widen(h, -min(h.full-want, max(h.credit, 0)))
	} else if h.keepsUp() {
		c.widen(h, want-h.full)
	}
}

// widen changes a stream's window, if the process has room for the promise.
func (c *Conn) widen(h *half, by int32) {
	if by == 0 || !c.e.Memory.Promise(int64(by)) {
		return
	}
	r, first := &c.reach, streamWindow
	if h.full == first {
		r.wide++
	}
	h.full += by
	h.credit += by
	r.promised += int64(by)
	if h.full == first {
		r.wide--
	}
}

// streamEnded releases a stream's wide window: no more bytes come.
func (c *Conn) streamEnded(id uint32, h *half) {
	if c.reach.id == id {
		c.reach.one.at = 0
	}
	c.widen(h, streamWindow-h.full)
}

// credited starts measuring after a stream's update, with which the peer may send left bytes.
func (c *Conn) credited(id uint32, left int32) {
	if r := &c.reach; r.one.start(c.e.now, left) {
		r.id = id
	}
}
