package bound

import (
	"context"
	"errors"
	"sync"
)

// ErrFull is what a Queue says to a source that has its share in it, and to everybody when it is full.
var ErrFull = errors.New("too many are waiting")

// Queue lets some of those that come be under way at once; the others wait. No source has more than a quarter of either bound, so
// one that comes with very much waits for itself.
type Queue struct {
	slots chan struct{} // those under way
	most  int64         // that wait or are under way

	mu   sync.Mutex // guards what follows
	held int64
	// by :: the line of each source that has something here
	by map[Source]*line
}

// line is one source's part of a Queue.
type line struct {
	held  int64
	slots chan struct{}
}

// NewQueue makes a Queue of which slots are under way at once, and most wait or are under way.
func NewQueue(slots, most int) *Queue {
	return &Queue{slots: make(chan struct{}, slots), most: int64(most), by: make(map[Source]*line)}
}

// Enter waits until it is s's turn: leave must then be called once. ErrFull comes at once, ctx's error when it ends first.
func (q *Queue) Enter(ctx context.Context, s Source) (leave func(), err error) {
	keys := s.parts()
	lines, ok := q.join(&keys)
	if !ok {
		return nil, ErrFull
	}
	// The narrowest first: who waits for its connection's turn must not take its address's.
	waits := [...]chan struct{}{lines[1].slots, lines[0].slots, q.slots}
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
		return nil, ctx.Err() //nolint:wrapcheck // the caller's own
	}
	return func() { q.leave(&keys, waits[:]) }, nil
}

// join counts one more in the lines of its keys, if there is room in each. The second line is empty if there is no second key.
func (q *Queue) join(keys *[2]part) (lines [2]line, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held >= q.most {
		return lines, false
	}
	for i := range keys {
		k := &keys[i]
		if l := q.by[k.key]; k.parts > 0 && l != nil && l.held >= k.of(q.most) {
			return lines, false
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
			l = &line{slots: make(chan struct{}, k.of(int64(cap(q.slots))))}
			q.by[k.key] = l
		}
		l.held++
		lines[i] = *l
	}
	return lines, true
}

// leave gives slots back, and the places in the lines.
func (q *Queue) leave(keys *[2]part, slots []chan struct{}) {
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
		if l := q.by[k.key]; k.parts > 0 && l != nil {
			if l.held--; l.held == 0 {
				delete(q.by, k.key)
			}
		}
	}
}
