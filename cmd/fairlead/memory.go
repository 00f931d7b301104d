package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/sys/unix"
)

// Most memory of a forwarding process is garbage that is not collected yet. A request allocates a
// few hundred bytes, a watch keeps some 1,400 for hours, and many clients that start at once leave
// twice as much garbage as they keep. docs/evidence/measurements.md has the figures.
const (
	// gcPercent is how much may be allocated, relative to the live heap, before a collection: Go's default. From
	// largeHeap on it is gcLarge, half of that, which costs a GET over HTTP/1.1 4 % of processor time.
	gcPercent, gcLarge = 100, 50
	largeHeap          = 64 << 20
	// idleTime is how long there must be no collection before memory is returned. Go collects every
	// two minutes, and then returns only memory above what gcPercent needs.
	idleTime = 10 * time.Second
)

// limitMemory sets Go's soft limit to nine tenths of the container's memory, so that garbage is collected earlier near
// the limit, before the kernel kills the process. The kernel also charges the container for thread stacks, socket
// buffers and file pages. Connections may hold a part of it (internal/hold). GOMEMLIMIT and AUTOMEMLIMIT override it.
func limitMemory(log *slog.Logger) {
	limit, err := memlimit.Set()
	if err != nil {
		log.Warn("looking for the container's memory limit", "err", err)
	} else if limit != math.MaxInt64 {
		log.Info("memory is limited", "bytes", limit)
	}
}

// followLimit sets the limit again: a container may be resized in place. What was made of the former one stays.
func followLimit() { _, _ = memlimit.Set() }

// memory returns unused memory to the system. It is not used if the operator has set GOGC.
type memory struct {
	give  func()
	last  heap
	burst bool // more than one collection between two looks, and nothing returned since
	large bool // gcLarge is in force
}

// heap is the runtime's heap statistics, in bytes.
type heap struct {
	cycles  uint64 // garbage collections so far
	live    uint64 // live after the last collection
	objects uint64 // live, plus allocated since
	free    uint64 // unused, but not returned to the system
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

// look sets the pace of collections. It returns memory if there was no collection since the last look, and an eighth of
// the live heap could be returned. After a burst it always returns memory: what a collection found alive in the burst
// may have been dropped since, and the statistics do not show it.
func (m *memory) look(now heap) {
	collected := now.cycles - m.last.cycles
	m.burst = m.burst || collected > 1
	m.last = now
	if large := now.live >= largeHeap; large != m.large {
		m.large = large
		debug.SetGCPercent(map[bool]int{true: gcLarge, false: gcPercent}[large])
	}
	const minReturn = 2 << 20 // a collection costs milliseconds, and so does getting the memory back
	spare := now.objects - min(now.live, now.objects) + now.free
	if collected == 0 && (m.burst || spare >= max(minReturn, now.live/8)) {
		m.give()
		m.last.cycles++ // give's own collection
		m.burst = false
	}
}

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	at := func(i int) uint64 { return s[i].Value.Uint64() }
	return heap{cycles: at(0), live: at(1), objects: at(2), free: at(3)}
}

// unmap releases the pages of the program's file until they are used again: nearly all were used at the start, and a
// third is used later. They stay in the page cache: the kernel maps them again, or drops them when memory is short.
func unmap() {
	maps, err := os.ReadFile("/proc/self/smaps") // without /proc there is nothing to do
	if err != nil {
		return
	}
	for _, m := range unmodified(string(maps)) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED) // only advice
	}
}

type mapping struct{ from, to uintptr }

// unmodified returns the mappings of files that cannot be written to and have no modified pages, in
// memory or in swap: such pages of an executable relocated at the start would lose content.
func unmodified(smaps string) (clean []mapping) {
	var m mapping // empty if it does not qualify
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(f[0], ":"): // from-to, permissions, offset, device, inode, path
			m = mapping{}
			if f[1][1] != 'w' && f[4] != "0" {
				_, _ = fmt.Sscanf(f[0], "%x-%x", &m.from, &m.to)
			}
		case f[0] == "Anonymous:" && f[1] != "0":
			m = mapping{}
		case f[0] == "Swap:" && f[1] == "0" && m.from < m.to: // comes after Anonymous
			clean = append(clean, m)
		}
	}
	return clean
}
