package h2

import (
	"slices"
	"sync"
)

// resumptions are plans that came after waiting, and are to be applied. There are at most as many as
// parked streams.
type resumptions struct {
	mu   sync.Mutex // guards what follows; taken without the shard's, or within it
	list []resumption
	busy bool // a goroutine is applying them
}

type resumption struct {
	t    *ticket
	plan Plan
}

// resume applies a plan, or leaves it to whoever is applying others. Thousands of requests may wait
// for the same answer: one goroutine at a time asks for the mutex on their behalf, so that the loop
// gets it after a turn of theirs, and what they send is written together.
func (sh *shard) resume(t *ticket, p Plan) {
	r := &sh.resumed
	r.mu.Lock()
	r.list = append(r.list, resumption{t, p})
	busy := r.busy
	r.busy = true
	r.mu.Unlock()
	if busy {
		return
	}
	for list := r.take(); list != nil; list = r.take() {
		for turn := range slices.Chunk(list, turnHeads) {
			sh.lock()
			for i := range turn {
				sh.e.resumed(turn[i].t, turn[i].plan)
			}
			sh.settle()
		}
	}
}

// take returns all there are; nil: there is none, and the next one is another goroutine's.
func (r *resumptions) take() []resumption {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list, r.busy = nil, len(list) > 0
	return list
}
