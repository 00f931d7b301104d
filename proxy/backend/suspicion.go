package backend

import (
	"sync/atomic"
	"time"
)

const (
	// slowDial is when an unfinished dial makes its endpoint suspect: far above a handshake between
	// neighboring continents, far below dialTimeout.
	slowDial = 250 * time.Millisecond
	// suspicionTime is how long an endpoint stays suspect after a failed dial. Then a request may
	// try it, unless the verdict comes first.
	suspicionTime = time.Second
	// suspicionWeight is added to a suspect endpoint's load: more than limits allow in flight.
	suspicionWeight = 1 << 20
)

// suspicion makes an endpoint the worse choice until health has judged it: one that cannot be
// dialed, or that has lost a connection, so that its server may have restarted and not be ready. It
// ejects no endpoint: if all are suspect, it changes nothing.
type suspicion struct {
	dialing atomic.Int64 // start of the dial in progress; zero means none
	failed  atomic.Int64 // time of the last dial if it failed; zero means that it succeeded
	doubted atomic.Int64 // until when a lost connection counts; zero means not
}

// doubt records a lost connection.
func (s *suspicion) doubt(d time.Duration) { s.doubted.Store(time.Now().Add(d).UnixNano()) }

// trust clears that, after a probe has judged the endpoint.
func (s *suspicion) trust() { s.doubted.Store(0) }

// weight returns the addition to the endpoint's load.
func (s *suspicion) weight() int64 {
	dialing, failed, doubted := s.dialing.Load(), s.failed.Load(), s.doubted.Load()
	if dialing|failed|doubted == 0 { // while all is well, no clock is read
		return 0
	}
	now := time.Now().UnixNano()
	if doubted > 0 && doubted <= now {
		s.doubted.CompareAndSwap(doubted, 0)
	}
	if doubted > now || dialing != 0 && now-dialing > int64(slowDial) || failed != 0 && now-failed < int64(suspicionTime) {
		return suspicionWeight
	}
	return 0
}

// load returns the value by which endpoints are compared.
func (e *endpoint) load() int64 {
	n := e.suspicion.weight()
	if e.server != nil {
		return n + e.server.load()
	}
	n += e.inFlight.Load()
	if c := e.via.Load(); c != nil {
		n += c.suspicion.weight()
	}
	return n
}
