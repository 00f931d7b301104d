package bound

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is returned to a source that has used up its share of a Queue, and to all when it is
// full.
var ErrFull = errors.New("too many are waiting")

// Queue runs a limited number of callers at once; others wait. No source has more than a quarter of
// either limit, so a source with many callers waits for itself.
type Queue struct {
	slots chan struct{} // one element for each running caller
	most  int64         // waiting and running

	mu   sync.Mutex // guards the fields below
	held int64
	// by :: the queue of each source with callers
	by map[Source]*sourceQueue
}

// sourceQueue is the queue of one source.
type sourceQueue struct {
	held  int64
	slots chan struct{}
}

// NewQueue returns a Queue that runs slots callers at once; at most most may wait or run.
func NewQueue(slots, most int) *Queue {
	return &Queue{slots: make(chan struct{}, slots), most: int64(most), by: make(map[Source]*sourceQueue)}
}

// Beside returns a Queue with places of its own, whose callers use q's slots: those that wait in
// one keep nobody out of the other.
func (q *Queue) Beside() *Queue {
	return &Queue{slots: q.slots, most: q.most, by: make(map[Source]*sourceQueue)}
}

// Enter waits for s's turn; the caller must then call leave once. It returns ErrFull at once, or
// ctx's error when ctx ends first.
func (q *Queue) Enter(ctx context.Context, s Source) (leave func(), err error) {
	keys := s.shares()
	queues, ok := q.join(&keys)
	if !ok {
		return nil, ErrFull
	}
	// The narrowest first: a caller that waits for its connection's turn must not take its
	// address's.
	waits := [...]chan struct{}{queues[1].slots, queues[0].slots, q.slots}
	for i, slots := range waits {
		if slots == nil {
			continue
		}
		select {
		case slots <- struct{}{}:
			if ctx.Err() == nil {
				continue
			}
			<-slots
		case <-ctx.Done():
		}
		q.leave(&keys, waits[:i])
		return nil, ctx.Err() //nolint:wrapcheck // the caller's ctx
	}
	return func() { q.leave(&keys, waits[:]) }, nil
}

// join counts a caller in the queues of its keys, if each has room. The second queue is empty if
// there is no second key.
func (q *Queue) join(keys *[2]share) (queues [2]sourceQueue, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held >= q.most {
		return queues, false
	}
	for i := range keys {
		k := &keys[i]
		if l := q.by[k.key]; k.parts > 0 && l != nil && l.held >= k.of(q.most) {
			return queues, false
		}
	}
	q.held++
	for i := range keys {
		k := &keys[i]
		if k.parts == 0 {
			continue
		}
		l := q.by[k.key]
		if l == nil {
			l = &sourceQueue{slots: make(chan struct{}, k.of(int64(cap(q.slots))))}
			q.by[k.key] = l
		}
		l.held++
		queues[i] = *l
	}
	return queues, true
}

// leave gives back slots, and the caller's places in the queues.
func (q *Queue) leave(keys *[2]share, slots []chan struct{}) {
	for _, s := range slots {
		if s != nil {
			<-s
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held--
	for i := range keys {
		k := &keys[i]
		if l := q.by[k.key]; k.parts > 0 {
			if l.held--; l.held == 0 {
				delete(q.by, k.key)
			}
		}
	}
}
