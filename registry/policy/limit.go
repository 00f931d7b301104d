package policy

import (
	"cmp"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// state is what a rule remembers. It outlives a new policy that has the same limit.
type state struct {
	// refused and passed count requests that matched. Those of a dry run are refused if it would
	// refuse them.
	refused, passed atomic.Uint64
	told            uint64    // those refused that Begins has seen
	toldAt          time.Time // when it last saw more

	all *rate.Limiter // of Rate, if all share it

	mu       sync.Mutex // guards inFlight
	inFlight map[bound.Source]int32
}

// Count returns how many requests a rule has refused and let pass since it has its name. Those of a
// dry run are refused if it would refuse them.
func (s *state) Count() (refused, passed uint64) { return s.refused.Load(), s.passed.Load() }

// Begins reports whether a rule refused since its caller's last call, and had not for calm.
func (s *state) Begins(now time.Time) bool {
	const calm = 5 * time.Minute // clients that try again wait less
	told, last := s.told, s.toldAt
	if s.told = s.refused.Load(); s.told != told {
		s.toldAt = now
	}
	return s.told != told && now.Sub(last) > calm
}

// buckets are the callers' own limits. One that is pushed out begins again with a full burst.
type buckets struct {
	*memo.Cache[bucket, *rate.Limiter]

	mu sync.Mutex // guards making one
}

type bucket struct {
	of   *state
	from bound.Source
}

const (
	// maxBuckets bounds the callers of all rules of kind Rate: more than a large cluster has nodes
	// and controllers, in at most bucketBytes.
	maxBuckets  = 1 << 15
	bucketBytes = 16 << 20
	bucketSize  = 256 // with its limiter
	// bucketTime is how long a caller that does not come back is remembered. It is renewed in its
	// second half; until then a full burst has come back anyway, which may take maxRefill.
	bucketTime = time.Hour
	maxRefill  = bucketTime / 2
)

// stateOf returns the state of a rule: old's, if its limit is the same.
func (g *Gates) stateOf(c, old *Gate) *state {
	if old != nil && old.Action == c.Action && old.PerSecond == c.PerSecond && old.Burst == c.Burst && old.Max == c.Max && old.Shared == c.Shared && old.DryRun == c.DryRun {
		return old.state
	}
	s := &state{inFlight: make(map[bound.Source]int32)}
	switch {
	case c.Action != Rate:
	case c.Shared:
		s.all = c.limiter()
	case g.buckets == nil:
		g.buckets = &buckets{Cache: memo.New[bucket, *rate.Limiter](memo.Config{Entries: maxBuckets, Bytes: bucketBytes})}
	}
	return s
}

func (r *AccessRule) limiter() *rate.Limiter {
	burst := cmp.Or(int(r.Burst), int(math.Ceil(r.PerSecond)))
	return rate.NewLimiter(rate.Limit(r.PerSecond), burst)
}

// of returns the limiter of a caller.
func (b *buckets) of(c *Gate, from bound.Source, now time.Time) *rate.Limiter {
	k := bucket{c.state, from}
	e := b.Get(k, now)
	if e != nil && e.Until.Sub(now) > maxRefill {
		return e.Value
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := c.limiter()
	if e = b.Get(k, now); e != nil {
		l = e.Value
	}
	k.from = bound.Source{User: strings.Clone(from.User), Address: strings.Clone(from.Address)} // not the request's memory
	b.Put(&memo.Entry[bucket, *rate.Limiter]{Key: k, Value: l, Size: bucketSize + len(from.User), Until: now.Add(bucketTime)})
	return l
}

// Place is what a request holds of a rule's limit until it ends. The zero Place holds nothing.
type Place struct {
	of   *state
	from bound.Source
}

// Enter counts a request that matches, and reports whether the rule lets it pass; then its Place
// must be left. If not, wait is how long until it would, zero if nobody knows.
func (c *Gate) Enter(from bound.Source, now time.Time) (p Place, wait time.Duration, ok bool) {
	if from.Conn = ""; c.Shared {
		from = bound.Source{}
	}
	switch c.Action {
	case Allow:
		ok = true
	case Rate:
		l := c.all
		if !c.Shared {
			l = c.buckets.of(c, from, now)
		}
		if ok = l.AllowN(now, 1); !ok { // a Reservation that is canceled would not be given back if there are later ones
			wait = time.Duration((1 - l.TokensAt(now)) / c.PerSecond * float64(time.Second))
		}
	case InFlight:
		c.mu.Lock()
		if ok = c.inFlight[from] < c.Max; ok {
			c.inFlight[from]++
			p = Place{of: c.state, from: from}
		}
		c.mu.Unlock()
	}
	if ok {
		c.passed.Add(1)
	} else {
		c.refused.Add(1)
	}
	return p, wait, ok
}

// Leave gives the place back. Further calls do nothing.
func (p *Place) Leave() {
	if p.of == nil {
		return
	}
	p.of.mu.Lock()
	if p.of.inFlight[p.from]--; p.of.inFlight[p.from] == 0 {
		delete(p.of.inFlight, p.from)
	}
	p.of.mu.Unlock()
	*p = Place{}
}
