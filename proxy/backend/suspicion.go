package backend

import (
	"sync/atomic"
	"time"
)

const (
	// slowDial is when a dial that nothing has come of makes its endpoint the worse choice: far above a handshake between continents' neighbours, far below dialTimeout.
	slowDial = 250 * time.Millisecond
	// suspicionTime is for how long after a failed dial an endpoint stays the worse choice. Then one request may find out, unless the verdict has come first.
	suspicionTime = time.Second
	// suspicionWeight is what suspicion adds to an endpoint's load: more than limits allow to be in flight.
	suspicionWeight = 1 << 20
)

// suspicion makes an endpoint the worse choice that cannot be dialled, or that has lost a connection and so may have
// begun anew and not be ready, until health has judged it. It ejects nobody: among suspects alone it changes nothing.
type suspicion struct {
	any     atomic.Bool  // something is to be looked at: the only thing that a choice reads when all is well
	dialing atomic.Int64 // since when a dial is under way. Zero: none is
	failed  atomic.Int64 // when a dial failed last. Zero: the last one succeeded
	doubted atomic.Int64 // until when a lost connection counts. Zero: it does not
}

// doubt is told that a connection was lost.
func (s *suspicion) doubt(d time.Duration) {
	s.doubted.Store(time.Now().Add(d).UnixNano())
	s.any.Store(true)
}

// trust is told that a probe has judged the endpoint.
func (s *suspicion) trust() { s.doubted.Store(0) }

func (s *suspicion) dialStarted() {
	if s.dialing.CompareAndSwap(0, time.Now().UnixNano()) {
		s.any.Store(true)
	}
}

func (s *suspicion) dialGivenUp() { s.dialing.Store(0) }

func (s *suspicion) dialFailed() {
	s.dialing.Store(0)
	s.failed.Store(time.Now().UnixNano())
	s.any.Store(true)
}

func (s *suspicion) dialSucceeded() {
	s.dialing.Store(0)
	s.failed.Store(0)
	s.any.Store(s.doubted.Load() > time.Now().UnixNano())
}

// weight is what to add to the load.
func (s *suspicion) weight() int64 {
	if !s.any.Load() {
		return 0
	}
	now := time.Now().UnixNano()
	if d := s.dialing.Load(); d != 0 && now-d > int64(slowDial) {
		return suspicionWeight
	}
	if s.doubted.Load() > now {
		return suspicionWeight
	}
	if f := s.failed.Load(); f != 0 && now-f < int64(suspicionTime) {
		return suspicionWeight
	}
	return 0
}

// load is by what endpoints are compared.
func (e *endpoint) load() int64 {
	n := e.inFlight.Load() + e.suspicion.weight()
	if c := e.via.Load(); c != nil {
		n += c.suspicion.weight()
	}
	return n
}
