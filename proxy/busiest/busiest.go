// Package busiest counts who sends the requests: in the last minute and the last hour, by caller
// (user, agent and address, with what they do), and by each of these alone. Its memory is fixed,
// however many callers there are: it keeps the heaviest (Misra and Gries, with Anderson et al.'s
// purge of a half at once), and knows how much of one that it does not keep it can have missed.
//
// The concurrency rule: a request is counted under the mutex of its stripe, in a map of the rows
// since the last flush. Run flushes them into the sketches, never under that mutex. Callers is safe
// for concurrent use.
//
// It keeps no memory of a request, only copies of bounded length, and knows no credentials.
package busiest

import (
	"context"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// Request is what is counted of a request.
type Request struct {
	// User is the effective user, Impersonator who impersonates it. Agent is the User-Agent, Source
	// the client's address. Empty means unknown, or none.
	User, Impersonator, Agent, Source string
	// Verb, Group, Resource and Subresource are what is asked for. Resource is the path of what is
	// no resource.
	Verb, Group, Resource, Subresource string
	// Server is the APIService that answers, or another name of who does.
	Server string
	// Counts are those of this request.
	Counts
}

// Counts are what was counted of some requests, when they ended.
type Counts struct {
	// Requests have ended, Errors of them with 5xx, Refused with 401, 403 or 429.
	Requests int64 `json:"requests"`
	Errors   int64 `json:"errors"`
	Refused  int64 `json:"refused"`
	// In and Out are bytes of their bodies, and of upgraded sessions.
	In  int64 `json:"in"`
	Out int64 `json:"out"`
	// Slowest is the longest of them in seconds, without long-running ones.
	Slowest float64 `json:"slowest"`
	// Watches are long-running requests and sessions that are open now.
	Watches int64 `json:"watches"`
}

func (c *Counts) add(o *Counts) {
	c.Requests, c.Errors, c.Refused = c.Requests+o.Requests, c.Errors+o.Errors, c.Refused+o.Refused
	c.In, c.Out, c.Watches, c.Slowest = c.In+o.In, c.Out+o.Out, c.Watches+o.Watches, max(c.Slowest, o.Slowest)
}

// weight decides which rows are kept. A request weighs as much as 4 KiB, so that both who lists
// 40 MB once a minute and who gets one object a thousand times a second are heavy.
func (c *Counts) weight() int64 { return c.Requests<<12 + c.In + c.Out }

const (
	// stripes is enough that cores rarely wait for each other: each is locked for about 200 ns.
	stripes = 4
	// maxGathered limits the rows of a stripe between two flushes. Run is woken when it is half
	// full; it flushes a row in a few µs, so few requests find no room.
	maxGathered = 256
	// slotTime is the length of a minute's slots, slotsOfHour how many are in one of an hour's.
	slotTime    = 10 * time.Second
	slotsOfHour = 60
	// slots is how many a window has, the open one included.
	slots = 6
	// maxOpen limits the rows of open long-running requests: 1.3 MiB. Others are only counted.
	maxOpen = 2048
)

// Callers counts requests. Make one with New. It forgets nothing until Run runs.
type Callers struct {
	stripes [stripes]stripe
	wake    chan struct{} // a stripe is half full

	mu           sync.Mutex // guards the sketches, and flushes
	minute, hour [slots]*slot
	turns        int // slots of the open one of hour

	opens sync.Mutex // guards what follows, and fields of Open
	open  map[string]*Open
	rest  Open // those without a row
}

type stripe struct {
	mu         sync.Mutex // guards the fields below
	key        []byte     // buffer
	now, spare map[string]*Counts
	lost       Counts // of requests that found no room
}

// New returns Callers.
func New() *Callers {
	c := &Callers{wake: make(chan struct{}, 1), open: make(map[string]*Open)}
	for i := range c.stripes {
		c.stripes[i].now, c.stripes[i].spare = make(map[string]*Counts), make(map[string]*Counts)
	}
	c.minute[0], c.hour[0] = newSlot(time.Now()), newSlot(time.Now())
	return c
}

// Add counts a request. Requests of one connection, by its number, share a stripe.
func (c *Callers) Add(conn uint32, r *Request) {
	s := &c.stripes[conn%stripes]
	s.mu.Lock()
	s.key = r.append(s.key[:0])
	into, half := s.now[string(s.key)], false
	switch {
	case into != nil:
	case len(s.now) < maxGathered:
		into = new(Counts)
		s.now[string(s.key)] = into
		half = len(s.now) == maxGathered/2
	default:
		into = &s.lost
	}
	into.add(&r.Counts)
	s.mu.Unlock()
	if half {
		latest.Wake(c.wake)
	}
}

// Open are the open long-running requests of one row.
type Open struct {
	of  *Callers
	key string
	n   int64
}

// Begin counts a long-running request as open until End.
func (c *Callers) Begin(r *Request) *Open {
	c.opens.Lock()
	defer c.opens.Unlock()
	key := string(r.append(nil))
	o := c.open[key]
	switch {
	case o != nil:
	case len(c.open) < maxOpen:
		o = &Open{of: c, key: key}
		c.open[key] = o
	default:
		c.rest.of, o = c, &c.rest
	}
	o.n++
	return o
}

// End ends one of them. A nil Open is none.
func (o *Open) End() {
	if o == nil {
		return
	}
	o.of.opens.Lock()
	defer o.of.opens.Unlock()
	if o.n--; o.n == 0 {
		delete(o.of.open, o.key) // rest is not in it
	}
}

// Run flushes and closes slots until ctx ends.
func (c *Callers) Run(ctx context.Context) error {
	tick := time.NewTicker(slotTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
			c.flush(false)
		case <-tick.C:
			c.flush(true)
		}
	}
}

// flush moves what the stripes have gathered to the open slot, and closes it if that is asked for.
func (c *Callers) flush(closes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.stripes {
		s := &c.stripes[i]
		s.mu.Lock()
		gathered, lost := s.now, s.lost
		s.now, s.lost = s.spare, Counts{}
		s.mu.Unlock()
		for key, counts := range gathered {
			c.minute[0].add(key, counts)
		}
		c.minute[0].miss(&lost)
		clear(gathered)
		s.spare = gathered // only flush uses it
	}
	if !closes {
		return
	}
	now := time.Now()
	c.hour[0].merge(c.minute[0])
	next(&c.minute, now)
	if c.turns++; c.turns == slotsOfHour {
		c.turns = 0
		next(&c.hour, now)
	}
}

// next closes the open slot of a window, and forgets the oldest.
func next(w *[slots]*slot, now time.Time) {
	w[0].close()
	copy(w[1:], w[:])
	w[0] = newSlot(now)
}
