package engine

import (
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Conn is one HTTP/2 connection as the engine sees it: of a client (side up) or of a backend (side down).
type Conn struct {
	e    *Engine
	side dir
	pool *pool // of a backend
	// Value is free for the driver.
	Value any

	// Reading.
	in      []byte // an incomplete frame, never bytes of DATA
	preface int    // bytes of the client preface still to come
	started bool   // the peer's first SETTINGS have come (§3.4)
	heard   bool   // the peer has acknowledged ours: it reads what we send
	useful  bool   // a backend has answered a request on it
	data    dataFrame
	block   []byte // the field block being received
	blockID uint32 // its stream; 0: none is being received
	blockES bool   // it ends the stream
	blockAt time.Duration
	frames  int // CONTINUATION frames of it
	turn    int // field blocks of a client that were handled in this turn
	left    int // bytes of input that wait for the next one
	dec     *hpack.Decoder

	// Writing.
	out      []byte // to be written
	inflight int    // bytes the driver has taken and not yet written
	tail     int    // where in out the last DATA frame begins, if it is the last frame
	tailID   uint32 // its stream; 0: the last frame is no DATA frame that may grow
	enc      *wire.Encoder
	ready    list          // streams that have something to send here and are only held up by the connection
	dirty    bool          // on the engine's list of connections with output
	held     bool          // out is not to be written yet, see finalHead
	flushing bool          // the driver is writing, and looks again afterwards
	flushAt  time.Duration // when the driver took it, or the peer last took some
	acked    uint64        // what the peer had taken when it was last asked about

	bytesIn, bytesOut int64 // since the connection began

	// The peer's settings and windows.
	peerWindow   int32 // SETTINGS_INITIAL_WINDOW_SIZE
	peerFrame    int   // SETTINGS_MAX_FRAME_SIZE
	peerStreams  uint32
	peerHeaders  uint32 // SETTINGS_MAX_HEADER_LIST_SIZE
	window       int32  // what the peer lets us send on the connection
	recv         int32  // what the peer may still send on the connection
	credit       int32  // bytes received whose window was not given back yet
	reach        reach
	queued       int // of a client: bytes that bodies of its streams hold, both ways
	weight       int // bytes that the connection itself holds, as weighed last
	heads        int // of a client: bytes of the heads of requests that were not answered yet, see maxHeads
	budget       budget.Budget
	streams      map[uint32]*stream
	maxID        uint32   // the highest stream id seen from a client, or used towards a backend
	resets       []uint32 // the last streams we reset: what still comes for them is ignored
	resetAt      int
	lastRead     time.Duration
	idleSince    time.Duration
	pingAt       time.Duration // when the unanswered PING was sent; 0: none
	goAway       goAwayState
	goAwayAt     time.Duration
	lastAccepted uint32 // after the final GOAWAY to a client: streams above it are ignored
	closing      bool   // close when the output is written; input is dropped
	closingAt    time.Duration
	gone         bool          // closed and forgotten
	cut          bool          // close at once, without writing
	drained      bool          // towards a backend: takes no new stream
	cutAt        time.Duration // when long-running streams of a retired endpoint are ended; 0: never
	at           int           // in engine.conns
}

// dataFrame is the DATA frame whose bytes are coming in.
type dataFrame struct {
	id   uint32
	left int // bytes of content still to come
	pad  int // bytes of padding after them
	end  bool
	on   bool
}

type goAwayState uint8

const (
	goAwayNone  goAwayState = iota
	goAwaySoon              // the first one was sent: no new stream please (§6.8)
	goAwayFinal             // streams above lastAccepted are not handled
)

func (e *Engine) newConn(side dir) *Conn {
	c := &Conn{
		e: e, side: side, streams: map[uint32]*stream{},
		peerWindow: defaultWindow, peerFrame: minMaxFrame, peerStreams: assumedStreams, peerHeaders: topStreamID,
		window: defaultWindow, recv: defaultWindow, budget: budget.New(e.now),
		lastRead: e.now, idleSince: e.now, blockAt: e.now,
	}
	c.dec = e.fields.NewDecoder()
	c.enc = wire.NewEncoder()
	if side == up {
		c.preface = len(http2.ClientPreface)
	}
	e.addConn(c)
	return c
}

// assumedStreams is how many streams are opened before the peer's SETTINGS say how many it takes: what net/http assumes.
const assumedStreams = 100

// touch makes sure the driver writes the connection's output.
func (c *Conn) touch() {
	if !c.dirty {
		c.dirty = true
		c.e.dirty = append(c.e.dirty, c)
	}
	if c.out == nil {
		c.out = c.e.buffer()
	}
}

// hold takes back the touch just made: output waits for the next one.
func (c *Conn) hold() {
	n := len(c.e.dirty) - 1
	c.e.dirty[n] = nil
	c.e.dirty = c.e.dirty[:n]
	c.dirty, c.held = false, true
}

// take hands the output to the driver.
func (c *Conn) take() []byte {
	b := c.out
	c.out, c.tailID, c.held = nil, 0, false
	c.inflight = len(b)
	c.bytesOut += int64(len(b))
	c.e.Count.Output.Add(int64(len(b)))
	c.flushAt = c.e.now
	c.weigh()
	return b
}

// flushed is told that what was taken has been written, and fills the output again.
func (c *Conn) flushed() {
	c.written()
	if c.closing {
		c.closingAt = c.e.now // the peer lingers from here
	}
	c.e.pump(c)
	if c.pool != nil && c.pool.waiting.n > 0 {
		c.pool.serve(c)
	}
}

// written ends the accounting of what was taken.
func (c *Conn) written() {
	c.e.Count.Output.Add(-int64(c.inflight))
	c.inflight = 0
	c.weigh()
}

// Over reports whether the client owes us reading before it may ask for more.
func (c *Conn) Over() bool {
	return c.side == up && len(c.out)+c.inflight > pauseLimit && !c.closing
}

// pauseLimit is the output of a client's connection beyond which nothing more is read from it: whoever does not take answers cannot
// ask questions. DATA stays below it by itself; heads and resets are what could grow.
const pauseLimit = 256 << 10

// Closing reports whether the connection is to be closed: what still comes is not worth decrypting.
func (c *Conn) Closing() bool { return c.closing }

// Cut reports whether it is to be closed at once, without what could still be written.
func (c *Conn) Cut() bool { return c.cut }

// Heads is how many field blocks of a client were handled in this turn.
func (c *Conn) Heads() int { return c.turn }

// room is how many bytes of DATA may be appended to the output now.
func (c *Conn) room() int { return c.e.lim.writeLimit - len(c.out) - c.inflight }

func (c *Conn) frame(length int, kind http2.FrameType, flags http2.Flags, id uint32) {
	c.touch()
	c.tailID = 0
	c.out = wire.FrameHeader{Length: length, Type: kind, Flags: flags, StreamID: id}.Append(c.out)
}

// writeData appends DATA, growing the last frame when it belongs to the same stream: fewer frames cost everybody less.
func (c *Conn) writeData(id uint32, p []byte, end bool) {
	c.touch()
	for {
		if c.tailID != id {
			c.tail = len(c.out)
			c.frame(0, http2.FrameData, 0, id)
			c.tailID = id
		}
		have := len(c.out) - c.tail - wire.FrameHeaderLen
		n := min(len(p), c.peerFrame-have)
		c.out = append(c.out, p[:n]...)
		p = p[n:]
		wire.PutFrameLength(c.out[c.tail:], have+n)
		if len(p) == 0 {
			break
		}
		c.tailID = 0
	}
	if end {
		c.out[c.tail+4] |= byte(http2.FlagDataEndStream)
		c.tailID = 0
	}
}

func (c *Conn) writeReset(id uint32, code http2.ErrCode) {
	c.frame(4, http2.FrameRSTStream, 0, id)
	c.u32(uint32(code))
}

func (c *Conn) writeWindow(id uint32, n int32) {
	c.frame(4, http2.FrameWindowUpdate, 0, id)
	c.u32(uint32(n))
}

func (c *Conn) writePing(flags http2.Flags, p []byte) {
	c.frame(8, http2.FramePing, flags, 0)
	c.out = append(c.out, p...)
}

func (c *Conn) writeGoAway(last uint32, code http2.ErrCode, why string) {
	c.e.Count.Sent[c.side].Add(1)
	c.frame(8+len(why), http2.FrameGoAway, 0, 0)
	c.u32(last)
	c.u32(uint32(code))
	c.out = append(c.out, why...)
}

func (c *Conn) u32(v uint32) {
	c.out = append(c.out, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
}

// writeHeaders encodes a field block. Blocks larger than one frame are split into CONTINUATION frames (§6.10).
func (c *Conn) writeHeaders(id uint32, end bool, lists ...[]hpack.HeaderField) {
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
	}
	c.touch()
	c.e.writing = c
	start := len(c.out)
	c.frame(0, http2.FrameHeaders, flags, id)
	c.out = c.enc.Append(c.out, lists...)
	n := len(c.out) - start - wire.FrameHeaderLen
	if n <= c.peerFrame {
		wire.PutFrameLength(c.out[start:], n)
		c.e.writing = nil
		return
	}
	block := append([]byte(nil), c.out[start+wire.FrameHeaderLen:]...)
	c.out = c.out[:start]
	c.frame(c.peerFrame, http2.FrameHeaders, flags&^http2.FlagHeadersEndHeaders, id)
	c.out = append(c.out, block[:c.peerFrame]...)
	for block = block[c.peerFrame:]; len(block) > 0; {
		n, flags := min(len(block), c.peerFrame), http2.Flags(0)
		if n == len(block) {
			flags = http2.FlagContinuationEndHeaders
		}
		c.frame(n, http2.FrameContinuation, flags, id)
		c.out = append(c.out, block[:n]...)
		block = block[n:]
	}
	c.e.writing = nil
}

// writeSettings opens the connection: our settings, and the rest of the connection's window.
func (c *Conn) writeSettings() {
	set := [4]http2.Setting{
		{ID: http2.SettingInitialWindowSize, Val: uint32(c.e.lim.streamWindow)},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.e.lim.maxHeader)},
		{ID: http2.SettingMaxFrameSize, Val: uint32(c.e.lim.maxFrame[c.side])},
		{ID: http2.SettingMaxConcurrentStreams, Val: c.e.lim.maxStreams},
	}
	window := c.e.lim.clientWindow
	if c.side == down {
		set[3] = http2.Setting{ID: http2.SettingEnablePush, Val: 0}
		window = c.e.lim.backendWindow
		c.touch()
		c.out = append(c.out, http2.ClientPreface...)
	}
	c.frame(6*len(set), http2.FrameSettings, 0, 0)
	for _, s := range set {
		c.out = append(c.out, byte(s.ID>>8), byte(s.ID))
		c.u32(s.Val)
	}
	if n := window - c.recv; n > 0 {
		c.writeWindow(0, n)
		c.recv += n
	}
}

// rememberReset keeps the id of a stream we reset: frames that were under way are then no error (§5.1, closed).
func (c *Conn) rememberReset(id uint32) {
	const keep = 256 // as many streams as a connection has by default
	if len(c.resets) < keep {
		c.resets = append(c.resets, id)
		return
	}
	c.resets[c.resetAt%keep] = id
	c.resetAt++
}

func (c *Conn) wasReset(id uint32) bool {
	return slices.Contains(c.resets, id)
}

// forgetReset is told that nothing more may come for a stream that was reset, and reports whether it was.
func (c *Conn) forgetReset(id uint32) bool {
	i := slices.Index(c.resets, id)
	if i >= 0 {
		c.resets[i] = 0 // no stream's
	}
	return i >= 0
}
