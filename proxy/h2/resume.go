package h2

import (
	"slices"
	"sync"
)

// resumptions are the plans of parked streams that wait to be applied. There is at most one per
// stream.
type resumptions struct {
	mu   sync.Mutex // guards the following fields; taken without the shard's mutex, or within it
	list []func()
	busy bool // a goroutine is applying them
}

// resume applies a plan, or leaves that to the goroutine that is applying others. Thousands of
// requests may wait for the same answer. Only one goroutine at a time takes the shard's mutex for
// them, so that the loop gets it after each of its turns, and their output is written together.
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

// turnPlans is how many plans are applied in one turn: as many as requests of a connection in a
// turn.
const turnPlans = 64

// take returns all pending plans. Nil means none: the next resume call applies its own.
func (r *resumptions) take() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list, r.busy = nil, len(list) > 0
	return list
}
