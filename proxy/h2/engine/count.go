package engine

import "sync/atomic"

// Counters are the metrics of one engine. They are written under the mutex and may be read without.
type Counters struct {
	Conns    [2]atomic.Int64           // by side: clients, backends
	Streams  atomic.Int64              // of clients and guests
	Resets   [resetCauses]atomic.Int64 // by cause: client, backend, limit, protocol, lane
	Sent     [2]atomic.Int64           // GOAWAY, by side
	Received [2]atomic.Int64           // GOAWAY, by side
	Floods   atomic.Int64              // connections closed with ENHANCE_YOUR_CALM
	Queued   atomic.Int64              // bytes of chunks for bodies
	Panics   atomic.Int64              // survived panics
	Output   atomic.Int64              // bytes that the driver has collected and not yet written
}

// resetCause is why a stream was reset. One reset of a forwarded stream counts once, although both
// its sides see RST_STREAM.
type resetCause uint8

const (
	resetByClient  resetCause = iota // the client sent RST_STREAM
	resetByBackend                   // the backend did
	resetByLimit                     // more streams than SETTINGS_MAX_CONCURRENT_STREAMS allows
	resetProtocol                    // a peer broke the protocol on the stream
	resetByEngine                    // a deadline, a drain, a handler's panic, an upload after its response
	resetCauses
)

func (n *Counters) reset(c resetCause) { n.Resets[c].Add(1) }
