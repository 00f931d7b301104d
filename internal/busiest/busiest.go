// Package busiest counts who sends the requests of the last minute and the last hour: by caller,
// and by user, agent, resource and source alone. Its memory is fixed. Of many rows it keeps the
// heaviest (Misra and Gries, with Anderson et al.'s purge of a half at once).
//
// The concurrency rule: a request is counted under its stripe's mutex, in a map that is flushed into the sketches
// elsewhere. Callers is safe for concurrent use. Of a request it keeps only bounded copies, and its owner's tokens.
package busiest

import (
	"context"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	stripes = 4           // enough that cores rarely wait for each other: each is locked for about 200 ns
	slots   = 6           // the parts of a window, the open one included
	turn    = time.Second // how often the stripes are flushed, at least
	// maxGathered limits the rows of a stripe between flushes; when it is half full, Run is woken.
	// maxOpen limits those of long-running requests. What finds no room has a row without a name.
	maxGathered, maxOpen = 256, 2048
)

// Callers counts requests. Make one with New. It forgets nothing until Run runs.
type Callers struct {
	seed    maphash.Seed
	stripes [stripes]stripe
	wake    chan struct{} // a stripe is half full

	mu      sync.Mutex // guards the windows, and flushes
	windows [2]window
	opens   sync.Mutex // guards open
	open    map[string]*row
}

type stripe struct {
	mu         sync.Mutex // guards the fields below
	key        []byte     // buffer
	now, spare map[string]*row
}

// New returns Callers.
func New() *Callers {
	c := &Callers{seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), open: map[string]*row{}}
	c.windows = [...]window{
		{10 * time.Second, []*slot{newSlot()}}, {10 * time.Minute, []*slot{newSlot()}}, // of a minute, and of an hour
	}
	for i := range c.stripes {
		c.stripes[i].now, c.stripes[i].spare = map[string]*row{}, map[string]*row{}
	}
	return c
}

// Add counts a request. Requests of one connection, by its number, share a stripe.
func (c *Callers) Add(conn uint32, r *Row) {
	s := &c.stripes[conn%stripes]
	s.mu.Lock()
	s.key = c.key(s.key[:0], r)
	into, half := s.now[string(s.key)], false
	if into == nil {
		into = place(s.now, maxGathered, string(s.key), r.Token)
		half = len(s.now) == maxGathered/2
	}
	into.Add(&r.Counts, 1)
	s.mu.Unlock()
	if half {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// Begin counts a long-running request as open until end is called.
func (c *Callers) Begin(r *Row) (end func()) {
	c.opens.Lock()
	defer c.opens.Unlock()
	key := string(c.key(nil, r))
	if len(c.open) >= maxOpen/4*3 && c.open[key] == nil {
		key = viewed(key)[1] // the user alone: all else is chosen by whoever wants to leave no room for others
	}
	o := place(c.open, maxOpen, key, r.Token)
	o.Watches++
	return func() {
		c.opens.Lock()
		defer c.opens.Unlock()
		if o.Watches--; o.Watches == 0 && c.open[key] == o {
			delete(c.open, key)
		}
	}
}

// key appends the key of a request's row: texts, with a zero byte between two. No name in Kubernetes' own components is
// longer than the bounds; of a longer one the beginning counts. The resource is last: a path may have zero bytes.
func (c *Callers) key(b []byte, r *Row) []byte {
	if b = text(b, 128, r.User); r.Token != nil {
		b = strconv.AppendUint(append(b, "token "...), maphash.Comparable(c.seed, r.Token), 16)
	}
	b = text(append(b, 0), 128, r.Agent)
	b = text(append(b, 0), 45, r.Source) // an address of IPv6 in its longest form
	b = text(append(b, 0), 16, r.Verb)   // deletecollection
	b = append(text(append(b, 0), 64, r.Server), 0)
	switch {
	case r.Subresource != "":
		return text(b, 96, r.Resource, ".", r.Group, "/", r.Subresource)
	case r.Group != "":
		return text(b, 96, r.Resource, ".", r.Group)
	}
	return text(b, 96, r.Resource)
}

func text(b []byte, most int, parts ...string) []byte {
	for end := len(b) + most; len(parts) > 0; parts = parts[1:] {
		b = append(b, parts[0][:min(len(parts[0]), end-len(b))]...)
	}
	return b
}

// place returns the row of a key, which may be new, or among most rows the nameless one.
func place(rows map[string]*row, most int, key string, token any) *row {
	if len(rows) >= most && rows[key] == nil {
		key, token = only(0, ""), nil
	}
	if rows[key] == nil {
		rows[strings.Clone(key)] = &row{token: token}
	}
	return rows[key]
}

// Run flushes until ctx ends.
func (c *Callers) Run(ctx context.Context) error {
	tick := time.Tick(turn)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		case <-tick:
		}
		c.flush()
	}
}

// flush moves what the stripes have gathered to the open slots, and closes those that are over.
func (c *Callers) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.stripes {
		s := &c.stripes[i]
		s.mu.Lock()
		s.now, s.spare = s.spare, s.now
		s.mu.Unlock()
		for key, r := range s.spare { // only a flush uses it
			keys := viewed(key)
			for w := range c.windows {
				c.windows[w].slots[0].add(keys, r)
			}
		}
		clear(s.spare)
	}
	for i := range c.windows {
		c.windows[i].turn()
	}
}
