package main

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Most memory of a process that forwards requests is room for garbage: a request allocates a few hundred bytes, a watch keeps some 1,400 for hours, and a crowd
// of clients that all begin at once leaves twice as much behind as it keeps. docs/performance.md has the figures.
const (
	// gcPercent is how much may be allocated, by what lives, before garbage is collected: half of Go's own. It costs no processor time that could be measured.
	gcPercent = 50
	// quiet is how long no garbage was collected when it is time to give memory back. Go collects every two minutes, and then returns memory only above
	// what it would need to grow by gcPercent.
	quiet = 10 * time.Second
	// worthIt is the least that is given back: collecting costs milliseconds, and so does taking the memory again.
	worthIt = 2 << 20
)

// limitMemory makes nine tenths of the container's memory Go's soft limit, so that garbage is collected sooner near it and the kernel ends nobody. The kernel charges more to
// the container: stacks of threads, buffers of sockets, pages of files. What connections may hold is a part of it (proxy/h2/hold). GOMEMLIMIT and AUTOMEMLIMIT override it.
func limitMemory(log *slog.Logger) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Warn("looking for the container's memory limit", "err", err)
	} else if limit != math.MaxInt64 {
		log.Info("memory is limited", "bytes", limit)
	}
}

// memory keeps the process small. An operator who sets GOGC has other plans, and is left alone.
type memory struct {
	give  func()
	last  heap
	burst bool // garbage was collected more than once between two looks, and nothing was given back since
}

// heap is what the runtime says of itself, in bytes.
type heap struct {
	cycles  uint64 // collections of garbage so far
	live    uint64 // what the last one has left
	objects uint64 // live, and allocated since
	free    uint64 // neither used nor returned to the system
}

func keepSmall() *memory {
	if _, set := os.LookupEnv("GOGC"); set {
		return nil
	}
	debug.SetGCPercent(gcPercent)
	return &memory{give: func() {
		debug.FreeOSMemory()
		unmap()
	}}
}

// Run gives memory back in quiet times until ctx ends.
func (m *memory) Run(ctx context.Context) error {
	t := time.NewTicker(quiet)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			m.look(readHeap())
		}
	}
}

// look gives memory back if nothing was collected since it was called last, and an eighth of what lives could be returned. How much that is after a burst
// nobody knows: what a collection found alive in the midst of it may have been dropped since.
func (m *memory) look(now heap) {
	collected := now.cycles - m.last.cycles
	m.burst = m.burst || collected > 1
	m.last = now
	if spare := now.objects - min(now.live, now.objects) + now.free; collected == 0 && (m.burst || spare >= max(worthIt, now.live/8)) {
		m.give()
		m.last.cycles++ // its own
		m.burst = false
	}
}

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return heap{cycles: s[0].Value.Uint64(), live: s[1].Value.Uint64(), objects: s[2].Value.Uint64(), free: s[3].Value.Uint64()}
}
