package engine

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// rig drives an engine without I/O: peers send and receive frames.
type rig struct {
	t        testing.TB
	e        *Engine
	peers    []*peer
	backends []*peer // in dial order
	locals   []answered
	outcomes []Outcome
	refuse   error // the error of dials; nil: they succeed
	heldDial bool  // dials wait in held
	held     []dialling
	ep       *Endpoint
	inFlight int // Pick minus Release
	failed   int // calls of Endpoint.Failed
	// plan may be changed before requests are sent; Forward and Done are filled in. A nil Forward
	// means "forward to ep".
	plan   Plan
	named  bool                                               // the backend sees its endpoint's name as :authority, otherwise the client's
	asked  string                                             // the last head's :authority
	decide func(h *wire.Head, resume func(Plan)) (Plan, bool) // replaces plan
}

type dialling struct {
	ep      *Endpoint
	dialled func(error) *Conn
}

type answered struct {
	*Local
	head wire.Head
}

type peer struct {
	r      *rig
	c      *Conn
	to     bytes.Buffer // to the engine
	from   bytes.Buffer // from the engine
	fr     *http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	silent bool // does not take the engine's output: its socket is full
	shut   bool // the driver has closed it at once
}

func newRig(t testing.TB, change ...func(*Engine)) *rig {
	r := &rig{t: t, e: New(Config{})}
	r.ep = r.endpoint("ep")
	r.e.Memory, r.e.Clock = hold.New(0), func() time.Time { return time.Unix(0, 0) }
	for _, f := range change {
		f(r.e)
	}
	r.e.Taken = func(*Conn) (uint64, bool, time.Duration) { return 0, true, 0 }
	r.e.Unread = func(*Conn) bool { return false }
	r.e.Decide = func(_ *Conn, h *wire.Head, resume func(Plan)) (Plan, bool) {
		r.asked = h.Authority
		if r.decide != nil {
			return r.decide(h, resume)
		}
		return r.forward(r.ep), true
	}
	r.e.Resume = func(apply func()) { apply(); r.run() }
	r.e.Serve = func(_ *Conn, h *wire.Head, handler http.Handler) (*Local, func()) {
		l := answered{&Local{}, *h}
		if status, ok := handler.(failing); ok {
			return l.Local, func() {
				l.End(int(status), []hpack.HeaderField{field(":status", strconv.Itoa(int(status))), field("content-length", "0")}, nil)
			}
		}
		return l.Local, func() { r.locals = append(r.locals, l) }
	}
	r.e.Dial = func(ep *Endpoint, dialled func(error) *Conn) {
		d := dialling{ep, dialled}
		if r.heldDial {
			r.held = append(r.held, d)
			return
		}
		r.dialled(d)
	}
	return r
}

func (r *rig) endpoint(name string) *Endpoint {
	return &Endpoint{Name: name, Release: func() { r.inFlight-- }, Failed: func(error, bool) { r.failed++ }, Told: func(*GoAway) {}}
}

// failing is the status with which a request fails: an empty answer.
type failing int

func (failing) ServeHTTP(http.ResponseWriter, *http.Request) {}

func failed(o Outcome) http.Handler {
	switch o.Reason {
	case ReasonDeadline:
		return failing(http.StatusGatewayTimeout)
	case ReasonTooLarge:
		return failing(http.StatusRequestHeaderFieldsTooLarge)
	case ReasonReset, ReasonBadResponse, ReasonBlamed:
		return failing(http.StatusBadGateway)
	default:
		return failing(http.StatusServiceUnavailable)
	}
}

// forward returns the rig's plan with the given endpoints, tried in turn.
func (r *rig) forward(eps ...*Endpoint) Plan {
	p := r.plan
	if !r.named {
		p.Authority = r.asked
	}
	p.Forward = &Upstream{Retried: func(Reason) {}, Pick: func(_ any, tried []*Endpoint) *Endpoint {
		if len(eps) == 0 {
			return nil
		}
		r.inFlight++
		return eps[min(len(tried), len(eps)-1)]
	}}
	if p.Done = func(o Outcome) { r.outcomes = append(r.outcomes, o) }; p.Fail == nil {
		p.Fail = failed
	}
	return p
}

func (r *rig) dialled(d dialling) {
	if r.refuse != nil {
		d.dialled(r.refuse)
	} else {
		b := r.peer(d.dialled(nil))
		r.backends = append(r.backends, b)
		b.fr.WriteSettings()
	}
	r.run()
}

// dialEnds ends the longest-running dial. After a successful one the backend has sent nothing yet.
func (r *rig) dialEnds(err error) (b *peer) {
	d := r.held[0]
	r.held = r.held[1:]
	if err != nil {
		d.dialled(err)
	} else {
		b = r.peer(d.dialled(nil))
		r.backends = append(r.backends, b)
	}
	r.run()
	return b
}

func (r *rig) peer(c *Conn) *peer {
	p := &peer{r: r, c: c}
	p.fr = http2.NewFramer(&p.to, &p.from)
	p.fr.AllowIllegalWrites = true
	p.fr.SetMaxReadFrameSize(maxMaxFrame)
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.fr.MaxHeaderListSize = 16 << 20
	p.enc = hpack.NewEncoder(&p.block)
	r.peers = append(r.peers, p)
	return p
}

func (r *rig) client() *peer {
	p := r.peer(r.e.AcceptClient())
	p.to.WriteString(http2.ClientPreface)
	p.fr.WriteSettings()
	p.flush()
	p.see()
	return p
}

func newClient(t testing.TB, change ...func(*Engine)) (r *rig, c *peer) {
	r = newRig(t, change...)
	return r, r.client()
}

// asked returns a rig with a GET in progress, on stream 1.
func asked(t testing.TB) (r *rig, c, b *peer) {
	r, c = newClient(t)
	c.get(1)
	return r, c, r.backend(0)
}

func (p *peer) flush() { p.say("") }

// feed passes bytes to the engine in as many turns as it needs.
func (r *rig) feed(c *Conn, b []byte) {
	for more := true; more; more = len(b) > 0 {
		b = r.e.Feed(c, b)
		r.run()
	}
}

// run does what a driver does.
func (r *rig) run() {
	for len(r.e.dirty) > 0 || len(r.e.calls) > 0 {
		dirty, calls := slices.Clone(r.e.dirty), slices.Clone(r.e.calls)
		r.e.dirty, r.e.calls = r.e.dirty[:0], r.e.calls[:0]
		for _, c := range dirty {
			c.dirty = false
			i := slices.IndexFunc(r.peers, func(p *peer) bool { return p.c == c })
			if i < 0 {
				continue // the engine has not returned it yet
			}
			p := r.peers[i]
			p.shut = c.cut
			if !p.silent {
				p.take()
			}
		}
		for i := range calls {
			r.e.runCall(&calls[i])
		}
	}
}

func (p *peer) take() {
	for len(p.c.out) > 0 {
		b := p.c.take()
		p.from.Write(b)
		p.c.Wrote(b, nil)
	}
}

func (r *rig) tick(d time.Duration) {
	for end := r.e.now + d; r.e.now < end; {
		r.e.Tick(min(r.e.now+TickEvery, end))
		r.run()
	}
}

func (p *peer) encode(fields ...string) []byte {
	p.block.Reset()
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		_ = p.enc.WriteField(field(name, value))
	}
	return p.block.Bytes()
}

// headers writes a field block, in CONTINUATION frames if it is long.
func (p *peer) headers(id uint32, end bool, fields ...string) {
	pieces(p.fr, id, end, p.encode(fields...), minMaxFrame, 0)
}

func (p *peer) send(id uint32, end bool, fields ...string) {
	p.headers(id, end, fields...)
	p.flush()
}

func (p *peer) get(id uint32, fields ...string) { p.request(id, "GET", true, fields...) }

func (p *peer) gets(first, last uint32) {
	for id := first; id <= last; id += 2 {
		p.get(id)
	}
}

func (p *peer) request(id uint32, method string, end bool, fields ...string) {
	p.send(id, end, append([]string{":method=" + method, ":scheme=https", ":authority=a", ":path=/"}, fields...)...)
}

func (p *peer) data(id uint32, body string, end bool) {
	_ = p.fr.WriteData(id, end, []byte(body))
	p.flush()
}

func (p *peer) pong() {
	_ = p.fr.WritePing(true, [8]byte([]byte("fairlead")))
	p.flush()
}

func (r *rig) lose(p *peer, err error) {
	r.e.lose(p.c, err)
	r.run()
}

// see returns the frames from the engine since the last call, as strings.
func (p *peer) see() []string {
	p.r.t.Helper()
	var got []string
	if p.c.side == down && bytes.HasPrefix(p.from.Bytes(), []byte(http2.ClientPreface)) {
		p.from.Next(len(http2.ClientPreface))
	}
	for f, err := p.fr.ReadFrame(); !errors.Is(err, io.EOF); f, err = p.fr.ReadFrame() {
		if err != nil {
			p.r.t.Fatalf("the engine wrote an invalid frame: %v (after %q)", err, got)
		}
		got = append(got, show(f))
	}
	return got
}

// backend returns the i-th connection to a backend, after its SETTINGS.
func (r *rig) backend(i int) *peer {
	r.t.Helper()
	if i >= len(r.backends) {
		r.t.Fatalf("only %d connections to backends", len(r.backends))
	}
	b := r.backends[i]
	if !b.c.started {
		b.flush()
	}
	return b
}

// clean checks that nothing is left when all streams have ended.
func (r *rig) clean() {
	r.t.Helper()
	held := r.e.Count.Queued.Load()
	for _, c := range r.e.conns {
		check.Same(r.t, 0, len(c.streams), "side %d: streams", c.side)
		check.Same(r.t, 0, c.heads, "side %d: bytes of heads", c.side)
		check.Same(r.t, [2]int{}, [2]int{c.queued, c.ready.n}, "side %d: bytes queued, and streams ready", c.side)
		c.weigh()
		held += int64(c.weight)
	}
	for _, list := range r.e.pools {
		for _, p := range list {
			check.Same(r.t, 0, p.waiting.n, "streams that wait")
		}
	}
	check.Same(r.t, r.e.held, held, "bytes held")
	check.Same(r.t, 0, r.inFlight, "requests still counted in flight")
	check.Same(r.t, 0, r.e.Count.Streams.Load(), "streams still counted")
	check.Same(r.t, false, r.e.Due(), "work is left")
	timers := 0
	for i := range r.e.wheel.slots {
		timers += r.e.wheel.slots[i].n
	}
	check.Same(r.t, 0, timers, "timers left")
}

const okHead = ":method=GET :scheme=https :authority=a :path=/"

func field(name, value string) hpack.HeaderField { return hpack.HeaderField{Name: name, Value: value} }
