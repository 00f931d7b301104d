package main

import (
	"os"
	"runtime/debug"
	"testing"
)

func TestKeepSmall(t *testing.T) {
	for _, tt := range []struct {
		name string
		gogc string // empty: not set
		want int
	}{
		{"not set", "", gcPercent},
		{"the operator's own", "200", 77},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("GOGC", tt.gogc)
			if tt.gogc == "" {
				os.Unsetenv("GOGC") // Setenv restores it
			}
			before := debug.SetGCPercent(77) // as if set by the environment at the start
			defer debug.SetGCPercent(before)
			m := keepSmall()
			if (m == nil) != (tt.gogc != "") {
				t.Errorf("with GOGC=%q memory is %v", tt.gogc, m)
			}
			if m != nil {
				cycles := readHeap().cycles
				if m.give(); readHeap().cycles == cycles {
					t.Error("memory is given back without a collection")
				}
			}
			if got := debug.SetGCPercent(before); got != tt.want {
				t.Errorf("collecting at %d %%, want %d", got, tt.want)
			}
		})
	}
}

func TestGiveBack(t *testing.T) {
	const mb = 1 << 20
	for _, tt := range []struct {
		name   string
		before uint64 // cycles at the last look
		now    heap
		want   bool
	}{
		{"garbage after a burst", 7, heap{7, 50 * mb, 90 * mb, 0}, true},
		{"memory that nobody uses", 7, heap{7, 50 * mb, 51 * mb, 40 * mb}, true},
		{"busy: it was collected meanwhile", 6, heap{7, 50 * mb, 90 * mb, 40 * mb}, false},
		{"little", 7, heap{7, 10 * mb, 11 * mb, mb / 2}, false},
		{"little of much", 7, heap{7, 500 * mb, 530 * mb, 30 * mb}, false},
		{"collected while it was looked", 7, heap{7, 50 * mb, 49 * mb, 0}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			given := 0
			m := &memory{give: func() { given++ }, last: heap{cycles: tt.before}}
			m.look(tt.now)
			if (given == 1) != tt.want {
				t.Fatalf("gave memory back %d times, want %v", given, tt.want)
			}
			if !tt.want {
				return
			}
			tt.now.cycles++ // the collection of the first look does not count as the process's own
			m.look(tt.now)
			if given != 2 {
				t.Errorf("its own collection counts as a busy process")
			}
		})
	}
}

// Memory of a burst is returned only after a garbage collection has made it visible.
func TestGiveBackAfterABurst(t *testing.T) {
	given := 0
	m := &memory{give: func() { given++ }, last: heap{cycles: 7}}
	for i, step := range []struct {
		cycles uint64
		want   int
	}{{8, 0}, {8, 0}, {10, 0}, {11, 0}, {11, 1}, {12, 1}, {12, 1}, {13, 1}, {13, 1}} {
		if m.look(heap{cycles: step.cycles, live: 9 << 20, objects: 9 << 20}); given != step.want {
			t.Fatalf("step %d: gave memory back %d times, want %d", i, given, step.want)
		}
	}
}

func TestReadHeap(t *testing.T) {
	if h := readHeap(); h.objects == 0 || h.objects > 1<<40 {
		t.Errorf("heap is %+v", h)
	}
	before := readHeap().cycles
	debug.FreeOSMemory()
	if after := readHeap(); after.cycles == before || after.live == 0 {
		t.Errorf("after a collection (%d before): %+v", before, after)
	}
}
