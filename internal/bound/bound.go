// Package bound implements limits that many callers share. No caller may use all of a limit.
//
// The rule: no source holds more than a quarter of a limit; with Places.Lend, more while some places stay free.
//
// Everything is safe for concurrent use. A mutex is held for a map look-up, never while waiting.
package bound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Places counts the places held of a limit, by source. The zero Places are empty. Do not copy them.
type Places struct {
	// Lend allows a source more than its quarter while at least a 32nd of the limit, and at least
	// one place, stays free for others. Then the first quarter of the limit is not counted by
	// source, so taking a place costs one addition. If false, no source gets more than a quarter.
	Lend bool

	held atomic.Int64
	mu   sync.Mutex // guards by
	// by :: the places of each source, only sources that hold some
	by map[Source]int64
}

// spared returns how many places of most are never lent, see Places.Lend.
func spared(most int64) int64 { return max(1, most/32) }

// Place is the result of Take. The zero Place holds nothing.
type Place struct {
	of      *Places
	source  Source
	n       int64
	counted bool
}

// Take takes n places of most, or none. Zero most means no limit; the places are then counted only in total.
func (p *Places) Take(s Source, n, most int64) (Place, bool) {
	held := p.held.Add(n)
	counted := most > 0 && (!p.Lend || held > most/quarter)
	if most > 0 && held > most || counted && !p.count(s, n, most, held) {
		p.held.Add(-n)
		return Place{}, false
	}
	return Place{of: p, source: s, n: n, counted: counted}, true
}

// TakeOf takes a place, of Places that do not lend, for s, which has no Conn, if that holds less than most.
func (p *Places) TakeOf(s Source, most int64) (Place, bool) {
	if !p.count(s, 1, most*quarter, 0) {
		return Place{}, false
	}
	p.held.Add(1)
	return Place{of: p, source: s, n: 1, counted: true}, true
}

// Room reports whether Take would give a place now.
func (p *Places) Room(s Source, most int64) bool {
	place, ok := p.Take(s, 1, most)
	place.Leave()
	return ok
}

// count adds n for s, unless that exceeds its share. held is the total with them.
func (p *Places) count(s Source, n, most, held int64) bool {
	lends := p.Lend && most-held >= spared(most)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !lends && !p.sharesLocked(s, n, most) {
		return false
	}
	if p.by == nil {
		p.by = make(map[Source]int64)
	}
	for key := range s.shares {
		p.by[key] += n
	}
	return true
}

// Shares reports whether the share of s has room for n more places of most, whoever holds the rest.
func (p *Places) Shares(s Source, n, most int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sharesLocked(s, n, most)
}

func (p *Places) sharesLocked(s Source, n, most int64) bool {
	for key, parts := range s.shares {
		if p.by[key]+n > part(most, parts) {
			return false
		}
	}
	return true
}

// Held returns the number of places taken.
func (p *Places) Held() int64 { return p.held.Load() }

// Leave gives the place back. Further calls do nothing.
func (h *Place) Leave() {
	p := h.of
	if p == nil {
		return
	}
	if h.counted {
		p.mu.Lock()
		for key := range h.source.shares {
			if p.by[key] -= h.n; p.by[key] <= 0 {
				delete(p.by, key)
			}
		}
		p.mu.Unlock()
	}
	p.held.Add(-h.n)
	*h = Place{}
}

// Source identifies who holds a place. Equal Sources are the same source.
type Source struct {
	User string // the user's name. If empty, the place counts for the request's address
	// Address is a stranger's address: an IPv4 address, or the /64 of an IPv6 address, which one subscriber gets.
	Address string
	// Conn is the address and port of a stranger's connection. A connection may hold a quarter of its address's share:
	// behind a load balancer or NAT all strangers have one address. Empty means that connections are not distinguished.
	Conn string
}

// Caller returns the Source of a request from remote (address and port) by u: a stranger's if that is nil or anonymous.
func Caller(u user.Info, remote string) Source {
	if u != nil && u.GetName() != user.Anonymous {
		return Source{User: u.GetName()}
	}
	return Stranger(remote)
}

// AnyConn returns s without its connection: all connections of an address are one source.
func (s Source) AnyConn() Source {
	s.Conn = ""
	return s
}

// Stranger returns the Source of a request from remote (address and port) without a known user.
func Stranger(remote string) Source {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return Source{Address: remote}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return Source{Address: ip.String(), Conn: remote}
	}
	prefix, _ := ip.Prefix(64) // an IPv6 address has 128 bits
	return Source{Address: prefix.String(), Conn: remote}
}

const quarter = 4 // the number of shares of a limit: one source may hold one

// shares yields the keys by which s counts, narrowest first, and of how many equal parts of a limit each may hold one.
func (s Source) shares(yield func(key Source, parts int64) bool) {
	if s.Conn == "" || yield(Source{Conn: s.Conn}, quarter*quarter) {
		yield(Source{User: s.User, Address: s.Address}, quarter)
	}
}

func part(most, parts int64) int64 { return max(1, most/parts) }

// ErrFull is returned to a source that has used up its share of a Queue, and to all if it is full.
var ErrFull = errors.New("too many are waiting")

// Queue runs a limited number of callers at once; others wait. No source has more than a quarter of
// either limit, so a source with many callers waits for itself.
type Queue struct {
	slots *semaphore.Weighted // of running callers; nil means that only sources are limited
	share int64               // what the slots of sources are shares of
	most  int64               // waiting and running

	callers Places
	// by :: the slots of each source with callers. Guarded by callers.mu
	by map[Source]*semaphore.Weighted
}

// NewQueue returns a Queue that runs slots callers at once; at most most may wait or run.
func NewQueue(slots, most int) *Queue {
	q := NewApart(slots, most)
	q.slots = semaphore.NewWeighted(int64(slots))
	return q
}

// NewApart returns a Queue in which sources wait only for themselves: each runs its share of slots,
// whatever others do. It is for callers that mostly wait.
func NewApart(slots, most int) *Queue {
	return &Queue{share: int64(slots), most: int64(most), by: make(map[Source]*semaphore.Weighted)}
}

// Beside returns a Queue with its own places, whose callers use q's slots: who waits in one does not fill the other.
func (q *Queue) Beside() *Queue {
	return &Queue{slots: q.slots, share: q.share, most: q.most, by: make(map[Source]*semaphore.Weighted)}
}

// Enter waits for s's turn; the caller must then call leave once. It returns ErrFull at once, or
// ctx's error when ctx ends first. The caller counts as n.
func (q *Queue) Enter(ctx context.Context, s Source, n int) (leave func(), err error) {
	place, ok := q.callers.Take(s, int64(n), q.most)
	if !ok {
		return nil, ErrFull
	}
	waits := q.waits(s)
	for i, slots := range waits {
		if err := slots.Acquire(ctx, 1); err != nil {
			q.leave(place, waits[:i])
			return nil, err //nolint:wrapcheck // the caller's ctx's
		}
	}
	return func() { q.leave(place, waits) }, nil
}

// waits returns the slots that a caller of s needs. The narrowest come first: who waits for its
// connection's turn must not take its address's.
func (q *Queue) waits(s Source) (waits []*semaphore.Weighted) {
	q.callers.mu.Lock()
	defer q.callers.mu.Unlock()
	for key, parts := range s.shares {
		if q.by[key] == nil {
			q.by[key] = semaphore.NewWeighted(part(q.share, parts))
		}
		waits = append(waits, q.by[key])
	}
	if q.slots != nil {
		waits = append(waits, q.slots)
	}
	return waits
}

func (q *Queue) leave(place Place, slots []*semaphore.Weighted) {
	for _, s := range slots {
		s.Release(1)
	}
	source := place.source
	place.Leave()
	q.callers.mu.Lock()
	defer q.callers.mu.Unlock()
	for key := range source.shares {
		if q.callers.by[key] == 0 {
			delete(q.by, key)
		}
	}
}

// Tally counts by source what happened in the last one or two minutes, for people who want to know who is behind it.
// Its memory is bounded: of many sources it keeps the busiest, with counts that may be too high by those of others that
// it has dropped (the Space-Saving algorithm). The zero Tally is empty. Do not copy it.
type Tally struct {
	mu sync.Mutex // guards the fields below
	// began is when now began. before is the minute before.
	began       time.Time
	now, before map[Source]int64
}

const (
	tallied   = 8           // how many sources are kept: one or two cause most of an overload
	tallyTime = time.Minute // the length of each of the two periods
	maxName   = 256         // limits the bytes of a name that is kept: none in Kubernetes is longer
)

// Add counts one for s.
func (t *Tally) Add(s Source) {
	s = s.AnyConn()
	if len(s.User) > maxName {
		s.User = strings.Clone(s.User[:maxName])
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turnLocked()
	n := t.now[s]
	if n == 0 && len(t.now) == tallied {
		var least Source
		least, n = t.extreme(t.now, -1)
		delete(t.now, least)
	}
	t.now[s] = n + 1
}

// Busiest returns how often something happened, and the source with most of it.
func (t *Tally) Busiest() (total int64, most Source, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turnLocked()
	all := maps.Collect(maps.All(t.before))
	for s, n := range t.now {
		all[s] += n
	}
	for _, n := range all {
		total += n
	}
	most, n = t.extreme(all, 1)
	return total, most, n
}

// turnLocked begins the next period, or the first.
func (t *Tally) turnLocked() {
	now := time.Now()
	switch age := now.Sub(t.began); {
	case age < tallyTime:
		return
	case age < 2*tallyTime:
		t.before = t.now
	default:
		t.before = nil
	}
	t.now, t.began = make(map[Source]int64), now
}

// extreme returns the source with the highest count, or the lowest if sign is negative.
func (*Tally) extreme(of map[Source]int64, sign int) (Source, int64) {
	if len(of) == 0 {
		return Source{}, 0
	}
	s := slices.MaxFunc(slices.Collect(maps.Keys(of)), func(a, b Source) int {
		return cmp.Or(sign*cmp.Compare(of[a], of[b]), strings.Compare(a.User+a.Address, b.User+b.Address))
	})
	return s, of[s]
}

// Busiest returns the source that holds most places, and how many, of those that are counted by source.
func (p *Places) Busiest() (most Source, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, held := range p.by {
		if held > n && s.Conn == "" {
			most, n = s, held
		}
	}
	return most, n
}

// Limit describes a limit that is reached, or was lately.
type Limit struct {
	Name string `json:"name"` // that of label limit of fairlead_backend_rejections_total
	// Held of Most places are taken. Holder holds at least Holds of them, more than any other. Zero and empty: unknown.
	Held   int64  `json:"held,omitempty"`
	Most   int64  `json:"most,omitempty"`
	Holder string `json:"holder,omitempty"`
	Holds  int64  `json:"holds,omitempty"`
	// Refused requests got 429 in the last one or two minutes, By as many of them as Times.
	Refused int64  `json:"refused"`
	By      string `json:"by,omitempty"`
	Times   int64  `json:"times,omitempty"`
}

// Reached returns a limit of most places of p, which may be nil, and whether it is reached, or refused one of refused.
func Reached(name string, p *Places, most int64, refused *Tally) (l Limit, reached bool) {
	l = Limit{Name: name, Most: most}
	var by, holder Source
	l.Refused, by, l.Times = refused.Busiest()
	if l.By = by.String(); p != nil {
		l.Held = p.Held()
		holder, l.Holds = p.Busiest()
		l.Holder = holder.String()
	}
	return l, l.Refused > 0 || most > 0 && l.Held >= most-spared(most) && l.Held > most/2
}

// String says in words how many requests a limit refuses, and whose.
func (l Limit) String() string {
	text := "limit " + l.Name
	if l.Most > 0 {
		text += fmt.Sprintf(": %d of %d places are held", l.Held, l.Most)
	}
	if l.Holds > 0 {
		text += fmt.Sprintf(", at least %d by %s", l.Holds, l.Holder)
	}
	text += fmt.Sprintf("; %d requests got 429 in the last two minutes", l.Refused)
	if l.Times > 0 {
		text += fmt.Sprintf(", %d of them from %s", l.Times, l.By)
	}
	return text
}

// String names a source, empty if there is none.
func (s Source) String() string {
	switch {
	case s.User != "":
		return fmt.Sprintf("user %q", s.User)
	case s.Address != "":
		return "strangers at " + s.Address
	}
	return ""
}
