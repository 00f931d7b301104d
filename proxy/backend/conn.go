package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// streamWindow bounds what one stream may have in flight or unread: 10,000 slow readers of watches must not hold net/http's 4 MiB each.
	streamWindow = 512 << 10
	// maxResponseHeader is net/http's limit for servers: what a client of ours would accept, a backend may send.
	maxResponseHeader = 1 << 20
	// watchGrace is how long a watch goes on after the trust of its connection has ended: it must be gone within 5 s, and noticing takes up to one.
	watchGrace = 4 * time.Second
	// assumedStreams is the limit that net/http assumes until its peer's SETTINGS have come.
	assumedStreams = 100
	// minFresh and maxFresh bound for how long SETTINGS are waited for before another connection is dialled, which is
	// else twice the time of the handshake: one round trip and the crypto on the same two machines.
	minFresh, maxFresh = 5 * time.Millisecond, 250 * time.Millisecond
	// defaultPing is within how long a dead HTTP/2 connection is noticed when the policy does not say.
	defaultPing = 5 * time.Second
)

// conn is one connection of an endpoint. What its comment names mu for is guarded by the endpoint's.
type conn struct {
	e     *endpoint
	cc    *http.ClientConn
	http1 bool
	// watches are the long-running requests, which end soon after the connection's trust does.
	watches cancels
	gone    chan struct{} // closed when the connection has ended
	fresh   time.Time     // until then its peer's SETTINGS are waited for
	once    sync.Once
	pinged  atomic.Bool // a ping was not answered
	ours    atomic.Bool // closed by us while it was fine
	heard   atomic.Bool // a response has come

	settled  bool      // mu: its peer's SETTINGS have come
	inFlight int       // mu
	draining bool      // mu: takes no new request and is closed with its last one
	full     bool      // mu: had no place when last asked
	idle     time.Time // mu: when its last request ended
}

// connect dials and wraps one connection, and watches over it until it is discarded.
func (e *endpoint) connect(ctx context.Context) (*conn, error) {
	start := time.Now()
	tc, err := e.up.dialTLS(ctx, e.address, e.up.target.protocols())
	if err != nil {
		return nil, err
	}
	fresh := min(max(2*time.Since(start), minFresh), maxFresh)
	lost, release := e.up.target.guard(tc.ConnectionState().PeerCertificates)
	c := &conn{e: e, http1: tc.ConnectionState().NegotiatedProtocol != "h2", gone: make(chan struct{}), idle: time.Now()}
	cc, err := newTransport(tc, e.up.view.Load().pingTimeout, c.count).NewClientConn(ctx, "https", e.address)
	if err != nil {
		release()
		closeSoon(e.up.owner, tc)
		e.up.target.signal(e.address, err)
		return nil, &dialError{dialConnect, err}
	}
	c.cc = cc
	cc.SetStateHook(c.changed)
	if c.http1 {
		expire(tc.NetConn(), e.up.view.Load().pingTimeout)
	} else {
		c.fresh = time.Now().Add(fresh)
		time.AfterFunc(fresh, func() { e.noticed(c) })
	}
	e.up.owner.spawn(func() { c.watch(lost, release) })
	return c, nil
}

// newTransport makes an http.ClientConn's transport for one connection that is there already. A transport per connection costs little, keeps no idle connections of its
// own, follows changes of policy, and tells whose ping was lost. ping is within how long a dead connection must be noticed.
func newTransport(tc *tls.Conn, ping time.Duration, count func(string)) *http.Transport {
	if ping <= 0 {
		ping = defaultPing
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialTLSContext:         func(context.Context, string, string) (net.Conn, error) { return tc, nil },
		DisableCompression:     true, // bodies are passed on as they are
		MaxResponseHeaderBytes: maxResponseHeader,
		Protocols:              &protocols,
		HTTP2: &http.HTTP2Config{
			// As on the frame lane, a silent connection is asked early, so that a throttled backend
			// has most of the time to answer; a tenth is left for the request to go elsewhere.
			SendPingTimeout:           ping * 2 / 10,
			PingTimeout:               ping * 7 / 10,
			WriteByteTimeout:          ping,
			MaxReceiveBufferPerStream: streamWindow,
			// No dynamic table: identity fields never enter a compression context that other users share. net/http cannot mark single fields as never indexed, and an
			// entry needs 32 bytes.
			MaxEncoderHeaderTableSize: 1,
			CountError:                count,
		},
	}
}

// count is told of protocol errors.
func (c *conn) count(what string) {
	if what == "conn_close_lost_ping" {
		c.pinged.Store(true)
	}
}

// changed is net/http's state hook. It may be called with the endpoint's mutex held (by Reserve), so it must not take it.
func (c *conn) changed(cc *http.ClientConn) {
	ended := cc.Err() != nil
	if ended {
		c.once.Do(func() { close(c.gone) })
	}
	if ended || c.e.starved.Load() {
		go c.e.noticed(c) // ends after a few instructions under the mutex
	}
}

// watch ends when the connection has.
func (c *conn) watch(lost <-chan struct{}, release func()) {
	defer release()
	o := c.e.up.owner
	select {
	case <-c.gone:
		c.ended()
		return
	case <-o.ctx.Done():
		c.shut()
		return
	case <-lost:
		c.e.drainConn(c)
	}
	grace := time.NewTimer(watchGrace)
	defer grace.Stop()
	select {
	case <-c.gone:
		return
	case <-o.ctx.Done():
	case <-grace.C:
		c.watches.cancel(errTrustEnded)
		select {
		case <-c.gone:
			return
		case <-o.ctx.Done():
		}
	}
	c.shut()
}

// ended tells health of a connection that ended by itself: a process may have died.
func (c *conn) ended() {
	if c.ours.Load() {
		return
	}
	err := errLost
	if c.pinged.Load() {
		err = errors.New(textLostPing)
	}
	c.e.lost()
	c.e.up.target.signal(c.e.address, err)
}

// discard closes a connection that has been taken out of its endpoint.
func (c *conn) discard() {
	if c.cc.Err() == nil {
		c.ours.Store(true)
	}
	closeSoon(c.e.up.owner, c.cc)
	c.once.Do(func() { close(c.gone) })
}

// shut closes a connection that is still in its endpoint, and with it the requests that it carries.
func (c *conn) shut() {
	c.e.mu.Lock()
	c.draining = true
	c.e.mu.Unlock()
	_ = c.cc.Close() // what it could say about a connection that is given up helps nobody
	c.once.Do(func() { close(c.gone) })
}

// closeSoon closes without waiting: a TLS close writes an alert, which a dead peer can delay by seconds.
func closeSoon(o *owner, c interface{ Close() error }) {
	o.spawn(func() { _ = c.Close() })
}

// cancels is a set of requests that may have to end early.
type cancels struct {
	// mu guards set.
	mu  sync.Mutex
	set map[*context.CancelCauseFunc]struct{}
}

// add registers f, and returns what takes it out again.
func (s *cancels) add(f context.CancelCauseFunc) (remove func()) {
	key := &f
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = make(map[*context.CancelCauseFunc]struct{})
	}
	s.set[key] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.set, key)
	}
}

// cancel ends all.
func (s *cancels) cancel(cause error) {
	s.mu.Lock()
	set := s.set
	s.set = nil
	s.mu.Unlock()
	for f := range set {
		(*f)(cause)
	}
}

// staleLocked reports whether the server may be closing the connection this very moment.
func (c *conn) staleLocked() bool {
	return c.http1 && c.inFlight == 0 && time.Since(c.idle) >= staleIdle
}

// unsettledLocked reports whether the connection must wait for its peer's SETTINGS before it gets a second request. If they
// allow fewer than were reserved, net/http never sends the rest: the first that finds no room waits with the lock in hand
// that the others need to use up their reservations.
func (c *conn) unsettledLocked() bool {
	if c.http1 || c.settled || c.inFlight == 0 {
		return false
	}
	// The one request may begin or end between the two questions. A limit so close to what is assumed shows when
	// there is an answer.
	limit := c.cc.InFlight() + c.cc.Available()
	c.settled = limit < assumedStreams-1 || limit > assumedStreams+1
	return !c.settled
}

// freshLocked reports whether the connection is about to take more requests.
func (c *conn) freshLocked() bool {
	return !c.draining && c.unsettledLocked() && time.Now().Before(c.fresh)
}

// heardOf is told how a request has ended: before a response its peer's SETTINGS have come.
func (c *conn) heardOf(err error) {
	if err != nil || c.http1 || c.heard.Swap(true) {
		return
	}
	c.e.mu.Lock()
	c.settled = true
	c.e.mu.Unlock()
	c.e.noticed(c)
}

// offers reports whether protocols hold p.
func offers(protocols []string, p string) bool {
	for _, have := range protocols {
		if strings.EqualFold(have, p) {
			return true
		}
	}
	return false
}
