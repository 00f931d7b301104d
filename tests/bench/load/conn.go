package load

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
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
	readBuffer   = 64 << 10 // holds four TLS records
)

// conn is one connection. Its reader goroutine also sends, unless the load has a rate.
type conn struct {
	l      *Load
	index  int
	tls    *tls.Conn
	in     *bufio.Reader
	framer *http2.Framer // reads in, writes out
	done   atomic.Int64

	// mu guards everything below. It is held while the buffer, which only this connection uses, is written.
	mu      sync.Mutex
	out     bytes.Buffer
	block   bytes.Buffer
	enc     *hpack.Encoder
	streams map[uint32]*stream
	nextID  uint32
	asked   int
	credit  int // bytes received and not yet credited
	took    []time.Duration
}

type stream struct {
	began  time.Time
	size   int
	status string
	watch  bool
}

func newConn(l *Load, index int, t *tls.Conn) (*conn, error) {
	c := &conn{l: l, index: index, tls: t, in: bufio.NewReaderSize(t, readBuffer), streams: map[uint32]*stream{}, nextID: 1}
	c.framer = http2.NewFramer(&c.out, c.in)
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.block)
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

func (c *conn) visit() {
	for {
		began := time.Now()
		if err := c.l.cfg.Visit(c.l.ctx); err != nil {
			c.l.fault(err)
			return
		}
		c.mu.Lock()
		c.count(began, time.Now())
		c.mu.Unlock()
	}
}

func (c *conn) count(began, now time.Time) {
	c.done.Add(1)
	c.took = append(c.took, now.Sub(began))
}

func (c *conn) send(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	if err := c.flush(); err != nil {
		c.l.fault(err)
	}
}

// read handles answers until the connection ends.
func (c *conn) read() {
	for {
		if err := c.turn(); err != nil {
			c.l.fault(err)
			return
		}
	}
}

// turn handles all received frames, and sends the requests that may follow.
func (c *conn) turn() error {
	f, err := c.framer.ReadFrame()
	c.mu.Lock()
	defer c.mu.Unlock()
	for now := time.Now(); err == nil; f, err = c.framer.ReadFrame() {
		if err := c.handle(f, now); err != nil {
			return err
		}
		if !c.whole() {
			return c.flush()
		}
	}
	return fmt.Errorf("receiving: %w", err)
}

// whole reports whether a whole frame is in the buffer.
func (c *conn) whole() bool {
	const head = 9
	b, _ := c.in.Peek(min(head, c.in.Buffered())) // what is in the buffer needs no read
	f, err := http2.ReadFrameHeader(bytes.NewReader(b))
	return err == nil && c.in.Buffered() >= head+int(f.Length)
}

func (c *conn) handle(f http2.Frame, now time.Time) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		if s := c.streams[f.StreamID]; s != nil && s.status == "" { // trailers have none
			s.status = f.PseudoValue("status")
		}
		if f.StreamEnded() {
			c.end(f.StreamID, now, nil)
		}
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
		c.end(f.StreamID, now, fmt.Errorf("stream %d was reset: %v", f.StreamID, f.ErrCode))
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server sent GOAWAY: %v", f.ErrCode)
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
		c.end(f.StreamID, now, nil)
	case s.watch:
		c.done.Add(1)
	}
}

// end handles the end of an answer, or of its stream by an error, and asks again.
func (c *conn) end(id uint32, now time.Time, err error) {
	s := c.streams[id]
	if s == nil {
		return
	}
	delete(c.streams, id)
	switch want := c.l.cfg.Size; {
	case err != nil:
		c.l.fault(err)
	case s.status != "200":
		c.l.fault(fmt.Errorf("status %s", s.status))
	case s.watch:
		c.l.fault(errors.New("a watch ended"))
	case want > 0 && s.size != want:
		c.l.fault(fmt.Errorf("a body has %d bytes, not %d", s.size, want))
	default:
		c.count(s.began, now)
	}
	if c.l.cfg.Rate == 0 && c.l.cfg.Next != nil {
		c.next(now)
	}
}

func (c *conn) next(began time.Time) {
	c.asked++
	c.ask(c.l.cfg.Next(c.index, c.asked-1), began)
}

func (c *conn) ask(r Request, began time.Time) {
	c.streams[c.nextID] = &stream{began: began, watch: r.Watch}
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
	for due := time.Now(); ; {
		due = due.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		select {
		case <-c.l.ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
		c.send(func() {
			if len(c.streams) >= c.l.cfg.Streams {
				c.l.fault(errors.New("more requests are running than the load allows: the rate is beyond saturation"))
				return
			}
			c.next(due)
		})
	}
}
