package proxy

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

const (
	// parkedAtOnce is how many requests of a source are decided with waiting at once: as many as one
	// user's reviews. The rest would wait for those anyway, and thousands of goroutines that are
	// answered together would keep the loop from a processor.
	parkedAtOnce = 16
	// maxParked bounds the bytes that wait for that, of whom a source has a quarter: the ordinary
	// requests of a hundred connections. A connection has a sixteenth, twice what the heads of its
	// streams may have: a head waits although its stream was reset, or its connection has ended.
	maxParked = 128 << 20
	// parkedSize is what waits beside the head's own bytes.
	parkedSize = 1 << 10
)

// parking holds the requests that are decided with waiting.
type parking struct {
	held bound.Places // bytes that wait

	mu sync.Mutex // guards what follows
	by map[bound.Source]*line
}

// line is one source's. There is none without requests.
type line struct {
	deciding int // goroutines
	waiting  []parked
}

// parked is a request that waits in a line.
type parked struct {
	decide func()
	place  bound.Place
}

// park has a request of so many bytes decided on a goroutine of its own, or after another one; false:
// too much waits. The goroutine ends with the look-ups' own timeouts.
func (l *parking) park(s bound.Source, size int, decide func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[s]
	switch {
	case at == nil:
		at = &line{deciding: 1}
		if l.by == nil {
			l.by = make(map[bound.Source]*line)
		}
		l.by[s] = at
	case at.deciding < parkedAtOnce:
		at.deciding++
	default:
		place, ok := l.held.Take(s, parkedSize+int64(size), maxParked)
		if ok {
			at.waiting = append(at.waiting, parked{decide, place})
		}
		return ok
	}
	go func() {
		for ; decide != nil; decide = l.next(s, at) {
			decide()
		}
	}()
	return true
}

// next returns what waits longest in a line; nil: nothing does.
func (l *parking) next(s bound.Source, at *line) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(at.waiting) == 0 {
		if at.waiting = nil; at.deciding == 1 {
			delete(l.by, s)
		}
		at.deciding--
		return nil
	}
	first := at.waiting[0]
	at.waiting[0] = parked{}
	at.waiting = at.waiting[1:]
	first.place.Leave()
	return first.decide
}

// line is whose line a request waits in. A token that the local apiserver has accepted counts for itself while nobody
// knows whose it is, wherever the request goes: bad ones may come over the same connection.
func (r *frameRequest) line() bound.Source {
	d := &r.decision // which is made anew afterwards
	if d.User == nil {
		d.Pool = r.l.p.cfg.Authn.Pool(&d.Credentials)
	}
	return d.source(r.head)
}

// decideParked decides with waiting. On this goroutine a panic would end the process: at a chain that
// a stranger has made, say (CVE-2025-58188).
func (l *frames) decideParked(r *frameRequest) (plan h2.Plan) {
	ctx, cancel := context.WithDeadline(context.Background(), r.head.Arrived.Add(parkTimeout))
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			l.p.log.Error("deciding panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			r.held.leave()
			plan = h2.Plan{Serve: l.p.answer(errPanicked())}
		}
	}()
	l.p.decide(ctx, &r.decision, r.head, r.front.conn, true)
	return l.plan(r)
}

// parkTimeout bounds how long a stream waits for a TokenReview and a SubjectAccessReview of 10 s each.
const parkTimeout = 25 * time.Second
