package engine

import (
	"encoding/binary"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Conn is one HTTP/2 connection as the engine sees it: of a client (side up) or of a backend (side down).
type Conn struct {
	e      *Engine
	side   dir
	pool   *pool        // of a backend's connection
	Value  any          // free for the driver
	Source *hold.Source // counts what heads of a client's address hold; nil means that nothing does

	// Input.
	in            []byte // an incomplete frame, never content of DATA
	preface       int    // bytes of the client preface still missing
	started       bool   // the peer's first SETTINGS have come (§3.4)
	settingsAcked bool   // the peer has acknowledged our SETTINGS, so it reads our output
	useful        bool   // the backend has answered a request on it
	data          dataFrame
	block         []byte // the field block being received
	blockID       uint32 // its stream; 0 means that none is being received
	blockES       bool   // END_STREAM of the field block
	blockAt       time.Duration
	turn          int // what was handled in this turn, in frames of DATA, see turnHeads
	left          int // bytes of input that wait for the next turn
	Sealed        int // bytes that the driver has read, of which TLS has made no content yet. It says so before Feed
	dec           *hpack.Decoder

	// Output.
	out      []byte // to be written
	inflight int    // bytes that the driver has taken and not yet written
	tail     int    // where the last DATA frame in out begins, if it is the last frame
	tailID   uint32 // its stream; 0 means that the last frame is no DATA frame that may grow
	enc      *wire.Encoder
	ready    list          // streams with output that only wait for the connection
	dirty    bool          // on the engine's list of connections with output
	delayed  bool          // out must not be written yet, see finalHead
	flushing bool          // the driver is writing, until Wrote, or cannot any more
	flushAt  time.Duration // when the driver took the output, or the peer last accepted some
	acked    uint64        // Taken's last result

	bytesIn, bytesOut int64 // since the connection began

	// The peer's settings and windows.
	peerWindow   int32 // SETTINGS_INITIAL_WINDOW_SIZE
	peerFrame    int   // SETTINGS_MAX_FRAME_SIZE
	peerStreams  uint32
	peerHeaders  uint32        // SETTINGS_MAX_HEADER_LIST_SIZE
	window       int32         // what the peer allows us to send on the connection
	chokedAt     time.Duration // of a backend: when a tick found its window used up; 0 means that it is not
	recv         int32         // what the peer may still send on the connection
	credit       int32         // bytes received, not yet returned to the peer's window
	reach        reach
	queued       int // of a client: bytes held for bodies of its streams, both ways
	weight       int // bytes that the connection itself holds, as last counted
	heads        int // of a client: what unanswered requests' heads have become, see crowded
	shared       int // what Source counts of heads and block
	budget       budget.Budget
	owed         int         // of a backend: bytes that may still come on streams that we have reset
	late         []lateReset // of a backend, see delays
	lateAt       time.Duration
	streams      map[uint32]*stream
	maxID        uint32   // the highest stream id received from a client or sent to a backend
	resets       []uint32 // the last streams we reset: further frames for them are ignored
	lastRead     time.Duration
	idleSince    time.Duration
	pingAt       time.Duration // when the unanswered PING was sent; 0 means none
	askedAt      time.Duration // of a backend: when the last PING was sent; 0 means never
	asked        uint8         // PINGs since a frame on a stream, a new request or Eject; nothingDue if none waits
	goAway       goAwayState
	goAwayAt     time.Duration
	lastAccepted uint32        // after a backend's GOAWAY: streams above it are not handled
	closing      bool          // close when the output is written; drop input
	closingAt    time.Duration // when closing began, or the peer last took some of the output
	orderly      bool          // closing because nothing is left to do
	gone         bool          // closed and removed from the engine
	cut          bool          // close at once, without writing
	why          Reason        // of a client: why this process closes it; empty means that the client is the cause
	drained      bool          // of a backend: takes no new streams
	told         *GoAway       // the error with which a backend ends the connection; nil means none
	cutAt        time.Duration // when its long-running streams are ended
	at           int           // index in Engine.conns
}

// ordered returns the streams for which which returns true, in the order of their ids, so that the
// engine stays deterministic. It leaves out those that end meanwhile.
func (c *Conn) ordered(which func(*stream) bool) func(yield func(*stream) bool) {
	return func(yield func(*stream) bool) {
		var ids []uint32
		for id, s := range c.streams {
			if which(s) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		for _, id := range ids {
			if s := c.streams[id]; s != nil && !yield(s) {
				return
			}
		}
	}
}

func all(*stream) bool { return true }

// dataFrame is the DATA frame that is being received.
type dataFrame struct {
	id   uint32
	left int // bytes of content still missing
	pad  int // bytes of padding after the content
	end  bool
	on   bool
}

type goAwayState uint8

const (
	goAwayNone  goAwayState = iota
	goAwaySoon              // the first GOAWAY was sent: please open no new streams (§6.8)
	goAwayFinal             // streams above maxID are not handled
)

func (e *Engine) newConn(side dir) *Conn {
	c := &Conn{
		e: e, side: side, streams: map[uint32]*stream{},
		peerWindow: defaultWindow, peerFrame: minMaxFrame, peerStreams: assumedStreams, peerHeaders: topStreamID,
		window: defaultWindow, recv: defaultWindow, budget: budget.New(e.now, budget.Burst),
		lastRead: e.now, idleSince: e.now, blockAt: e.now, cutAt: never,
		dec: e.fields.NewDecoder(), enc: wire.NewEncoder(), at: len(e.conns),
	}
	if side == up {
		c.preface = len(http2.ClientPreface)
	} else {
		c.budget = budget.New(e.now, budget.Saved)
	}
	e.conns = append(e.conns, c)
	e.Count.Conns[side].Add(1)
	return c
}

// touch has the driver write the connection's output: see Collect.
func (c *Conn) touch() {
	if !c.dirty {
		c.dirty = true
		c.e.dirty = append(c.e.dirty, c)
	}
	if c.out == nil {
		if c.out = c.e.buffers.Get(); c.out == nil {
			c.out = make([]byte, 0, 4096)
		}
	}
}

func (c *Conn) take() []byte {
	b := c.out
	c.out, c.tailID, c.delayed = nil, 0, false
	c.inflight = len(b)
	c.bytesOut += int64(len(b))
	c.e.Count.Output.Add(int64(len(b)))
	c.flushAt = c.e.now
	c.weigh()
	return b
}

// Over reports whether the client must read before it may send more.
func (c *Conn) Over() bool { return c.side == up && len(c.out)+c.inflight > pauseLimit && !c.closing }

// Closing reports whether the connection is being closed: further input need not be decrypted.
func (c *Conn) Closing() bool { return c.closing }

// Cut reports whether to close it at once, without writing the remaining output.
func (c *Conn) Cut() bool { return c.cut }

// Heads returns how many of a client's field blocks were handled in this turn, or as much else.
func (c *Conn) Heads() int { return c.turn / headFrames }

// room returns how many bytes of DATA may be appended to the output now.
func (c *Conn) room() int { return c.e.lim.writeLimit - len(c.out) - c.inflight }

func (c *Conn) frame(length int, kind http2.FrameType, flags http2.Flags, id uint32) {
	c.touch()
	c.tailID = 0
	c.out = wire.AppendFrameHeader(c.out, http2.FrameHeader{
		Length: uint32(length), Type: kind, Flags: flags, StreamID: id,
	})
}

// writeData appends DATA. It extends the last frame if that is the same stream's: fewer frames are cheaper.
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
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
}

func (c *Conn) writeWindow(id uint32, n int32) {
	c.frame(4, http2.FrameWindowUpdate, 0, id)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(n))
}

func (c *Conn) writePing(flags http2.Flags, p []byte) {
	c.frame(8, http2.FramePing, flags, 0)
	c.out = append(c.out, p...)
}

func (c *Conn) writeGoAway(last uint32, code http2.ErrCode, why string) {
	c.e.Count.Sent[c.side].Add(1)
	c.frame(8+len(why), http2.FrameGoAway, 0, 0)
	c.out = binary.BigEndian.AppendUint32(c.out, last)
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(code))
	c.out = append(c.out, why...)
}

// writeHeaders encodes a field block. A large block is split into CONTINUATION frames (§6.10).
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
	block := slices.Clone(c.out[start+wire.FrameHeaderLen:])
	c.out, flags = c.out[:start], flags&^http2.FlagHeadersEndHeaders
	for kind := http2.FrameHeaders; len(block) > 0; kind, flags = http2.FrameContinuation, 0 {
		part := block[:min(len(block), c.peerFrame)]
		if block = block[len(part):]; len(block) == 0 {
			flags |= http2.FlagContinuationEndHeaders
		}
		c.frame(len(part), kind, flags, id)
		c.out = append(c.out, part...)
	}
	c.e.writing = nil
}

// writeSettings opens the connection: SETTINGS, and the rest of the connection's window.
func (c *Conn) writeSettings() {
	set := [4]http2.Setting{
		{ID: http2.SettingInitialWindowSize, Val: uint32(streamWindow)},
		{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.e.headLimit(c.side))},
		{ID: http2.SettingMaxFrameSize, Val: uint32(c.side.maxFrame())},
		{ID: http2.SettingMaxConcurrentStreams, Val: c.e.MaxStreams},
	}
	window := clientWindow
	if c.side == down {
		set[3] = http2.Setting{ID: http2.SettingEnablePush, Val: 0}
		window = c.e.lim.backendWindow
		c.touch()
		c.out = append(c.out, http2.ClientPreface...)
	}
	c.frame(6*len(set), http2.FrameSettings, 0, 0)
	for _, s := range set {
		c.out = binary.BigEndian.AppendUint16(c.out, uint16(s.ID))
		c.out = binary.BigEndian.AppendUint32(c.out, s.Val)
	}
	if n := window - c.recv; n > 0 {
		c.writeWindow(0, n)
		c.recv += n
	}
}

// rememberReset stores the id of a stream we reset: frames in flight for it are no error (§5.1).
func (c *Conn) rememberReset(id uint32) {
	const keep = 256 // as many streams as a connection has by default
	if c.resets = append(c.resets, id); len(c.resets) > keep {
		c.resets = c.resets[1:]
	}
}

func (c *Conn) wasReset(id uint32) bool { return slices.Contains(c.resets, id) }

const (
	// pauseLimit is the output of a client's connection beyond which nothing is read from it: a client that does not
	// read answers cannot send requests. DATA alone stays below the limit; heads and resets could exceed it.
	pauseLimit     = 256 << 10
	assumedStreams = 100     // how many streams are opened before the peer's SETTINGS come, as in net/http
	minMaxFrame    = 1 << 14 // RFC 9113 §4.2: the size every endpoint accepts
	maxMaxFrame    = 1<<24 - 1
	// largeFrame is accepted from backends, and sent at most: DATA is forwarded as it comes, more only saves headers.
	largeFrame    = 64 << 10
	maxWindow     = 1<<31 - 1 // §6.9.1
	topStreamID   = 1<<31 - 1 // §5.1.1
	defaultWindow = 65535     // §6.9.2: a peer's assumption until it has read SETTINGS
)

// maxFrame is the largest frame that is accepted on a side.
func (d dir) maxFrame() int {
	if d == up {
		return minMaxFrame
	}
	return largeFrame
}

// padding returns the bytes before and after a padded DATA's or HEADERS' content (§6.1, §6.2); p begins the payload.
func padding(h http2.FrameHeader, p []byte) (before, after int, err *connError) {
	switch {
	case !h.Flags.Has(http2.FlagDataPadded): // the same bit as FlagHeadersPadded
		return 0, 0, nil
	case len(p) == 0:
		return 0, 0, &connError{http2.ErrCodeFrameSize, "padded frame without a pad length"}
	case uint32(p[0]) >= h.Length:
		return 0, 0, &connError{http2.ErrCodeProtocol, "padding as long as the frame"}
	}
	return 1, int(p[0]), nil
}

// connError is the reason to close a whole connection (RFC 9113 §5.4.1).
type connError struct {
	code http2.ErrCode
	why  string
}

func (e *connError) Error() string {
	return "http2 connection error " + e.code.String() + ": " + e.why
}
