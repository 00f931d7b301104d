package h2

import (
	"slices"
	"sync"
)

// resumptions are plans that came after waiting, and are to be applied. There are at most as many as
// parked streams.
type resumptions struct {
	mu   sync.Mutex // guards what follows; taken without the shard's, or within it
	list []func()
	busy bool // a goroutine is applying them
}

// resume applies a plan, or leaves it to whoever is applying others. Thousands of requests may wait
// for the same answer: one goroutine at a time asks for the mutex on their behalf, so that the loop
// gets it after a turn of theirs, and what they send is written together.
func (sh *shard) resume(apply func()) {
	r := &sh.resumed
	r.mu.Lock()
	r.list = append(r.list, apply)
	busy := r.busy
	r.busy = true
	r.mu.Unlock()
	if busy {
		return
	}
	for list := r.take(); list != nil; list = r.take() {
		for turn := range slices.Chunk(list, turnPlans) {
			sh.lock()
			for _, apply := range turn {
				apply()
			}
			sh.settle()
		}
	}
}

// turnPlans is how many plans are applied in one turn: as many as requests are decided in one of a connection.
const turnPlans = 64

// take returns all there are; nil: there is none, and the next one is another goroutine's.
func (r *resumptions) take() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list, r.busy = nil, len(list) > 0
	return list
}
