package engine

import (
	"sync/atomic"

	"golang.org/x/net/http2"
)

// Counters are what one engine counts. They are written under the driver's mutex and may be read without it.
type Counters struct {
	Conns    [2]atomic.Int64           // by side: clients, backends
	Streams  atomic.Int64              // of clients
	Resets   [resetCauses]atomic.Int64 // by cause: client, backend, limit, protocol, lane
	Sent     [2]atomic.Int64           // GOAWAY, by side
	Received [2]atomic.Int64           // GOAWAY, by side
	Floods   atomic.Int64              // connections that were closed with ENHANCE_YOUR_CALM
	Queued   atomic.Int64              // bytes of chunks that hold bodies
	Panics   atomic.Int64              // that were survived
	Output   atomic.Int64              // bytes that the driver has taken and not yet written
}

// resetCause is why a stream was reset. One reset of a forwarded stream counts once, although both its sides see RST_STREAM.
type resetCause uint8

const (
	resetByClient  resetCause = iota // the client sent RST_STREAM
	resetByBackend                   // the backend did
	resetByLimit                     // more streams than SETTINGS_MAX_CONCURRENT_STREAMS allows
	resetProtocol                    // a peer broke the protocol on the stream
	resetByLane                      // a deadline, a drain, a handler that panicked, an upload that nobody wants
	resetCauses
)

func (n *Counters) reset(c resetCause) { n.Resets[c].Add(1) }

// aborted counts a reset that the engine decided on. What a peer began was counted when its frame came.
func (n *Counters) aborted(r Reason) {
	switch r {
	case ReasonDeadline, ReasonDrain, ReasonAbort, ReasonRetired:
		n.reset(resetByLane)
	default:
	}
}

// failed counts a connection that was closed for a connection error.
func (n *Counters) failed(err *connError) {
	if err.code == http2.ErrCodeEnhanceYourCalm {
		n.Floods.Add(1)
	}
}
