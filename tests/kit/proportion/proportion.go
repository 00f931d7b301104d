// Package proportion checks that what a stranger sends costs in proportion to its size: a table of
// dimensions, each with a function that makes the input and one that reads it. It measures the
// processor's time and bytes, and no time of a clock, so a busy machine changes nothing.
//
// Everything is measured of the whole process. So nothing else may run meanwhile: no t.Parallel.
package proportion

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Row is one dimension in which somebody else chooses how much there is.
type Row struct {
	Name string // says what there is many of, or what is long
	N    int    // the smaller amount. The larger is 4 N.
	// Of makes an input of n, and returns its size in bytes and what reads it. What read returns is
	// what stays in memory; if nil, that is not measured.
	Of   func(n int) (sent int, read func() any)
	Held int // how many times of what was sent may stay in memory. Zero means 8.
}

const (
	grows = 4 // the larger input's size in smaller ones
	// maxAllocated is how many more bytes may be allocated, also those that are dropped: a short
	// list doubles when it grows, and a long one grows by a quarter, so that more is dropped.
	maxAllocated = 8
	// maxBytes is how many more bytes may stay for the larger input; maxHeld is how many for each
	// that was sent. A field of 16 bytes in two strings of 16 with 24 of a slice takes 5.
	maxBytes, maxHeld = 5, 8
	// tries is of how many measurements the least counts: others only use the caches of the
	// processor, and never make it faster.
	tries  = 5
	rounds = 20 // how often a row that seems to grow too fast is measured again
	// enough is what the smaller input takes at least, by repeating it: a thousand times the
	// resolution of getrusage(2).
	enough = time.Millisecond
	slack  = 32 << 10 // what others of this process may allocate during a measurement
)

// Repeat returns texts with n times each between begin and end. In each, @ is its number, and @-1 that
// of the one before; the last loses the comma at its end.
func Repeat(begin, each, end string) func(n int) string {
	return func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.NewReplacer("@-1", fmt.Sprint(max(i-1, 0)), "@", fmt.Sprint(i)).Replace(each))
		}
		return begin + strings.TrimSuffix(b.String(), ",") + end
	}
}

// Check measures all rows, each in a subtest.
func Check(t *testing.T, rows ...Row) {
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			for _, fault := range r.Faults(t) {
				t.Error(fault)
			}
		})
	}
}

// Faults returns in which ways a row's cost grows faster than its input.
func (r *Row) Faults(t testing.TB) (faults []string) {
	few, small := r.Of(r.N)
	sent, large := r.Of(grows * r.N)
	most := max(r.Held, maxHeld)
	if r.Held != 0 && r.Held < maxHeld {
		t.Fatalf("%d times of what was sent is below the default", r.Held)
	}
	var heldSmall, heldLarge int
	var grew, much bool
	for n := range rounds { // what else the process keeps disturbs some, and never all
		heldSmall, heldLarge = held(small, large, 2+n)
		// A text that is kept from some length on is in proportion: it is not more than was sent.
		grew = heldLarge > max(maxBytes*heldSmall, sent)+slack
		much = heldLarge-heldSmall > most*(sent-few)+slack // without what each has, however small
		if !grew && !much {
			break
		}
	}
	if grew {
		faults = append(faults, fmt.Sprintf("%d bytes stay, and %d of %d times as much", heldSmall, heldLarge, grows))
	}
	if much {
		faults = append(faults, fmt.Sprintf("%d more bytes stay of %d more that were sent, over %d times as many", heldLarge-heldSmall, sent-few, most))
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector has a time of its own
	// What other processes leave in the processor's caches disturbs some rounds, on a busy machine
	// most, and never all. A product of two lengths takes 16 times as much in each.
	var a, b cost
	for range rounds {
		a, b = r.least(small, large)
		if b.time <= maxTime*a.time {
			break
		}
	}
	if b.time > maxTime*a.time {
		faults = append(faults, fmt.Sprintf("%v of processor time, and %v for %d times as much (%.1fx)", a.time, b.time, grows, float64(b.time)/float64(a.time)))
	}
	if b.bytes > maxAllocated*a.bytes+slack {
		faults = append(faults, fmt.Sprintf("%d bytes are allocated, and %d for %d times as much (%.1fx)", a.bytes, b.bytes, grows, float64(b.bytes)/float64(a.bytes)))
	}
	t.Logf("%v and %v (%.1fx), %d and %d bytes allocated (%.1fx), %d and %d held, of %d sent",
		a.time, b.time, float64(b.time)/float64(a.time), a.bytes, b.bytes, float64(b.bytes)/float64(max(a.bytes, 1)), heldSmall, heldLarge, sent)
	return faults
}

// cost is what one reading takes.
type cost struct {
	time  time.Duration
	bytes int
}

// least returns the least cost of both inputs. The measurements alternate.
func (r *Row) least(small, large func() any) (a, b cost) {
	times := 1
	for spent(small, times).time*time.Duration(times) < enough {
		times *= 2
	}
	few := max(times/grows, 1)
	a, b = spent(small, times), spent(large, few)
	for range tries - 1 {
		x, y := spent(small, times), spent(large, few)
		a, b = cost{min(a.time, x.time), min(a.bytes, x.bytes)}, cost{min(b.time, y.time), min(b.bytes, y.bytes)}
	}
	return a, b
}

// spent returns the mean cost of some readings.
func spent(read func() any, times int) cost {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	bytes, begun := m.TotalAlloc, processor()
	for range times {
		read()
	}
	took := processor() - begun
	runtime.ReadMemStats(&m)
	return cost{took / time.Duration(times), int(m.TotalAlloc-bytes) / times}
}

// processor returns the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it exists everywhere
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// held returns how many bytes stay in memory after each of the readings.
func held(small, large func() any, collections int) (a, b int) {
	if small() == nil { // it also fills what belongs to all
		return 0, 0
	}
	large()
	begun := heap(collections)
	one := small()
	between := heap(collections)
	two := large()
	ended := heap(collections)
	runtime.KeepAlive(one)
	runtime.KeepAlive(two)
	return max(int(between)-int(begun), 0), max(int(ended)-int(between), 0)
}

// heap returns what is alive. What is in pools stays for two collections, and an entry of package
// unique until a goroutine of the runtime has removed it, after some.
func heap(collections int) uint64 {
	for range collections {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
