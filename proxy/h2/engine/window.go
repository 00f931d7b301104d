package engine

import "time"

// Windows grow with the distance of the peer. A stream whose receiver takes everything at once may
// still use only one window in each round trip, however fast the line is: 256 KiB are 5 MB/s from a
// peer 50 ms away. How long a round trip is shows when a window is used up: what an update allows
// comes after the update has arrived.

const (
	// near is a distance at which the first window is wide enough: 128 MB/s.
	near = 2 * time.Millisecond
	// far is beyond any distance. What takes longer was not held up by a window.
	far = time.Second
	// growth is by how much a window becomes wider in a round trip: after two of them a stream's is
	// as wide as the 4 MiB that Go's client begins with.
	growth = 4
	// rest is how long a window stays wide that is not used well.
	rest = 5 * time.Second
	// widest is 80 MB/s from the other side of the world (200 ms).
	widest = 16 << 20
	// minSharers leaves room for others when few streams are wide: of the default bound one has 8
	// MiB. Those that run long become only a little wider, because after a list at their beginning
	// they keep for hours what they do not use.
	minSharers = 16
)

// meter times how long it takes a peer to use a window up.
type meter struct {
	at   time.Duration // when the window was updated; 0: none is timed
	left int32         // what may still come of it
}

// start is told of an update, after which the peer may send left. It reports whether that one is
// timed.
func (m *meter) start(now time.Duration, left int32) bool {
	if m.at > 0 && now-m.at <= far {
		return false
	}
	m.at, m.left = now, left
	return true
}

// came is told of n bytes. It returns how long the window has lasted, or 0 if there is some of it
// left.
func (m *meter) came(now time.Duration, n int32) time.Duration {
	if m.at == 0 {
		return 0
	}
	m.left -= n
	if m.left > 0 {
		return 0
	}
	took := max(now-m.at, 1)
	m.at = 0
	return took
}

// reach is what a connection has found out about the distance of its peer.
type reach struct {
	shortest time.Duration // a round trip; 0: not known
	seen     time.Duration // when a window was last used well
	all      meter         // of the connection's window
	one      meter         // of the window of a stream, id
	id       uint32
	conn     int32 // how wide the connection's window is; 0: as it was first
	stream   int32 // how wide the window of a stream may be that is used well; 0: as all are first
	promised int64 // by how much streams' windows together are wider than they were first
	wide     int32 // how many are
}

// judge says what becomes of a window of size that lasted for took. It never becomes narrower here:
// that a stream is slow says nothing about the others.
func (r *reach) judge(now, took time.Duration, size int32) int32 {
	if took < near || took > far {
		return size
	}
	if r.shortest == 0 || took < r.shortest {
		r.shortest = took
	}
	if took > 2*growth*r.shortest {
		return size // an eighth of it would do
	}
	r.seen = now
	if took > 2*r.shortest {
		return size
	}
	return max(size, min(size*growth, widest))
}

// rest forgets the distance of a peer that has not used its windows for a while.
func (r *reach) rest(now time.Duration) {
	if r.stream > 0 && now-r.seen > rest {
		r.stream, r.shortest = 0, 0
	}
}

// came is told of a DATA frame of n bytes on the connection.
func (c *Conn) came(n int32) {
	took := c.reach.all.came(c.e.now, n)
	if took == 0 || c.side == down { // a backend's connection has a window that no line fills
		return
	}
	size := c.fullWindow()
	if wide := c.reach.judge(c.e.now, took, size); wide > size {
		c.reach.conn = wide
		c.credit += wide - size
	}
}

// fullWindow is how much the peer may send on the connection when all that came has been credited.
func (c *Conn) fullWindow() int32 {
	if c.side == down {
		return c.e.lim.backendWindow
	}
	return max(c.e.lim.clientWindow, c.reach.conn)
}

// cameOn is told of a DATA frame of n bytes on a stream.
func (c *Conn) cameOn(id uint32, h *half, n int32) {
	r := &c.reach
	if r.id != id {
		return
	}
	took := r.one.came(c.e.now, n)
	if took == 0 || !h.keepsUp() {
		return
	}
	if size := r.judge(c.e.now, took, h.full); size > h.full {
		r.stream = max(r.stream, size)
	}
}

// keepsUp reports whether the receiver takes what comes: else a wider window would only be filled.
func (h *half) keepsUp() bool { return h.q.size <= int(h.full)/2 && !h.discard }

// fit makes a stream's window as wide as it should be; wide ones have equal shares of what the
// connection may promise. A promise is never broken: a window that is too wide gets no credit until
// enough of it was used.
func (c *Conn) fit(s *stream, h *half) {
	r, first := &c.reach, c.e.lim.streamWindow
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
	} else if h.full < want && h.keepsUp() {
		c.widen(h, want-h.full)
	}
}

// widen changes a stream's window, if the process has room for what that promises.
func (c *Conn) widen(h *half, by int32) {
	if by == 0 || !c.e.Memory.Promise(int64(by)) {
		return
	}
	r, first := &c.reach, c.e.lim.streamWindow
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

// cameAll is told that nothing more comes on a stream.
func (c *Conn) cameAll(id uint32, h *half) {
	if c.reach.id == id {
		c.reach.id, c.reach.one.at = 0, 0
	}
	if h.full > c.e.lim.streamWindow {
		c.widen(h, c.e.lim.streamWindow-h.full)
	}
}

// credited is told of a stream's update, after which the peer may send left.
func (c *Conn) credited(id uint32, left int32) {
	if r := &c.reach; r.one.start(c.e.now, left) {
		r.id = id
	}
}
