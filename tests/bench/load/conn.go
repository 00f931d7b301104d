package load

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// streamWindow is so large that no stream waits for it, connWindow so that a WINDOW_UPDATE
	// covers many bodies of 100 KB.
	streamWindow = 1 << 30
	connWindow   = 1 << 24
	// readBuffer holds four TLS records.
	readBuffer = 64 << 10
)

// conn is one connection. Its reader goroutine also sends, unless the load has a rate.
type conn struct {
	l      *Load
	index  int
	tls    *tls.Conn
	in     *bufio.Reader
	framer *http2.Framer // reads in, writes out
	dec    *hpack.Decoder
	status string // of the block that dec decodes

	done atomic.Int64

	// mu guards everything below. It is held while the buffer, which only this connection uses, is
	// written.
	mu      sync.Mutex
	out     bytes.Buffer
	block   bytes.Buffer
	enc     *hpack.Encoder
	streams map[uint32]*stream
	free    []*stream
	nextID  uint32
	first   bool // waiting for the answer to Config.First
	asked   int
	credit  int // bytes received and not yet credited
	took    []time.Duration
}

type stream struct {
	began  time.Time
	size   int
	status bool // 200 was received
}

func newConn(l *Load, index int, t *tls.Conn) (*conn, error) {
	c := &conn{l: l, index: index, tls: t, in: bufio.NewReaderSize(t, readBuffer), streams: map[uint32]*stream{}, nextID: 1}
	c.framer = http2.NewFramer(&c.out, c.in)
	c.framer.SetReuseFrames()
	c.enc = hpack.NewEncoder(&c.block)
	c.dec = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			c.status = f.Value
		}
	})
	c.out.WriteString(http2.ClientPreface)
	// Neither can fail: out is memory.
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = c.framer.WriteWindowUpdate(0, connWindow)
	return c, c.flush()
}

func (c *conn) flush() error {
	if c.out.Len() == 0 {
		return nil
	}
	_, err := c.tls.Write(c.out.Bytes())
	c.out.Reset()
	if err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	return nil
}

func (c *conn) run() {
	converse := c.converse
	if c.l.cfg.Visit != nil {
		converse = c.visit
	}
	if err := converse(); err != nil {
		c.l.fault(err)
	}
}

func (c *conn) visit() error {
	for {
		began := time.Now()
		if err := c.l.cfg.Visit(c.l.ctx); err != nil {
			return err
		}
		c.mu.Lock()
		c.count(began, time.Now())
		c.mu.Unlock()
	}
}

// count counts a correct answer.
func (c *conn) count(began, now time.Time) {
	c.done.Add(1)
	if c.l.timed.Load() {
		c.took = append(c.took, now.Sub(began))
	}
}

func (c *conn) converse() error {
	if first := c.l.cfg.First; first != nil {
		if err := c.introduce(*first); err != nil {
			return err
		}
	}
	select {
	case <-c.l.begin:
	case <-c.l.ctx.Done():
		return nil
	}
	if c.l.cfg.Rate == 0 {
		c.mu.Lock()
		now := time.Now()
		for range c.l.cfg.Streams {
			c.asked++
			c.ask(c.l.cfg.Next(c.index, c.asked-1), now)
		}
		err := c.flush()
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	for {
		if err := c.turn(); err != nil {
			return err
		}
	}
}

// introduce sends the first request and waits for its answer.
func (c *conn) introduce(r Request) error {
	defer c.l.warm.Done()
	c.mu.Lock()
	c.first = true
	c.ask(r, time.Now())
	err := c.flush()
	c.mu.Unlock()
	for err == nil && c.first {
		err = c.turn()
	}
	return err
}

// turn handles all received frames, and sends the requests that may follow.
func (c *conn) turn() error {
	f, err := c.framer.ReadFrame()
	if err != nil {
		return fmt.Errorf("receiving: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for {
		if err := c.handle(f, now); err != nil {
			return err
		}
		if !c.whole() {
			return c.flush()
		}
		if f, err = c.framer.ReadFrame(); err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// whole reports whether a whole frame is in the buffer.
func (c *conn) whole() bool {
	const head = 9
	if c.in.Buffered() < head {
		return false
	}
	b, err := c.in.Peek(head)
	return err == nil && c.in.Buffered() >= head+int(b[0])<<16+int(b[1])<<8+int(b[2])
}

func (c *conn) handle(f http2.Frame, now time.Time) error {
	switch f := f.(type) {
	case *http2.HeadersFrame:
		return c.head(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded(), f.StreamEnded(), now)
	case *http2.ContinuationFrame:
		return c.head(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded(), false, now)
	case *http2.DataFrame:
		c.data(f, now)
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = c.framer.WriteSettingsAck() // out is memory
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.framer.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		c.l.fault(fmt.Errorf("stream %d was reset: %v", f.StreamID, f.ErrCode))
		c.end(f.StreamID, now)
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server sent GOAWAY: %v", f.ErrCode)
	}
	return nil
}

func (c *conn) head(id uint32, block []byte, whole, ended bool, now time.Time) error {
	if _, err := c.dec.Write(block); err != nil {
		return fmt.Errorf("reading a head: %w", err)
	}
	if whole {
		if err := c.dec.Close(); err != nil {
			return fmt.Errorf("reading a head: %w", err)
		}
		if s := c.streams[id]; s != nil && c.status != "" {
			if s.status = c.status == "200"; !s.status {
				c.l.fault(fmt.Errorf("status %s", c.status))
			}
		}
		c.status = ""
	}
	if ended {
		c.finish(id, now)
	}
	return nil
}

func (c *conn) data(f *http2.DataFrame, now time.Time) {
	n := int(f.Length)
	if c.credit += n; c.credit > connWindow/4 {
		_ = c.framer.WriteWindowUpdate(0, uint32(c.credit))
		c.credit = 0
	}
	s := c.streams[f.StreamID]
	if s == nil {
		return
	}
	s.size += n
	switch {
	case f.StreamEnded():
		c.finish(f.StreamID, now)
	case c.l.cfg.Watch && !c.first:
		c.done.Add(1)
	}
}

// finish handles the end of an answer.
func (c *conn) finish(id uint32, now time.Time) {
	s := c.streams[id]
	if s == nil {
		return
	}
	if c.first {
		c.first = false
		delete(c.streams, id)
		if !s.status {
			c.l.fault(errors.New("the first request failed"))
		}
		return
	}
	switch want := c.l.cfg.Size; {
	case c.l.cfg.Watch:
		c.l.fault(errors.New("a watch ended"))
	case !s.status: // already counted
	case want > 0 && s.size != want:
		c.l.fault(fmt.Errorf("a body has %d bytes, not %d", s.size, want))
	default:
		c.count(s.began, now)
	}
	c.end(id, now)
}

func (c *conn) end(id uint32, now time.Time) {
	s := c.streams[id]
	if s == nil {
		return
	}
	delete(c.streams, id)
	*s = stream{}
	c.free = append(c.free, s)
	if c.l.cfg.Rate == 0 && !c.l.cfg.Watch {
		c.asked++
		c.ask(c.l.cfg.Next(c.index, c.asked-1), now)
	}
}

func (c *conn) ask(r Request, began time.Time) {
	s := &stream{}
	if n := len(c.free); n > 0 {
		s, c.free = c.free[n-1], c.free[:n-1]
	}
	s.began = began
	c.streams[c.nextID] = s
	c.block.Reset()
	for _, f := range [...]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: c.l.cfg.Address}, {Name: ":path", Value: r.Path},
		{Name: "accept", Value: "application/json"}, {Name: "user-agent", Value: "bench/1 (linux/amd64) kubernetes/unknown"},
	} {
		_ = c.enc.WriteField(f) // block is memory
	}
	if r.Token != "" {
		_ = c.enc.WriteField(hpack.HeaderField{Name: "authorization", Value: "Bearer " + r.Token})
	}
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.nextID, BlockFragment: c.block.Bytes(), EndStream: true, EndHeaders: true})
	c.nextID += 2
}

// pace starts requests at random moments, a Poisson process: latencies are those of independent
// clients, and a slow answer does not delay the next request (no coordinated omission).
func (c *conn) pace(rate float64) {
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due = due.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		timer.Reset(time.Until(due))
		select {
		case <-c.l.ctx.Done():
			return
		case <-timer.C:
		}
		c.mu.Lock()
		if len(c.streams) >= c.l.cfg.Streams {
			c.l.fault(errors.New("more requests are running than the load allows: the rate is beyond saturation"))
		} else {
			c.asked++
			c.ask(c.l.cfg.Next(c.index, c.asked-1), due)
		}
		err := c.flush()
		c.mu.Unlock()
		if err != nil && !errors.Is(err, io.EOF) {
			c.l.fault(err)
			return
		}
	}
}
