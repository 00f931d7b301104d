package hold

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestDefaultIsQuarterOfMemoryLimit(t *testing.T) {
	old := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(old) })
	debug.SetMemoryLimit(400 << 20)
	check.Same(t, 100<<20, New(0).limit, "bytes that connections may hold, of 400 MiB")
	debug.SetMemoryLimit(math.MaxInt64)
	check.Within(t, 1, math.MaxInt64/fraction, New(0).limit, "bytes that connections may hold without a Go memory limit")
}

// All holders together never hold more than the limit, and one alone holds at most a quarter.
func TestHoldersShare(t *testing.T) {
	for _, holders := range []int64{1, 2, 10, 100, 1000} {
		b := New(1 << 30)
		held := make([]int64, holders)
		for moved := true; moved; {
			moved = false
			for i := range held {
				if held[i] < b.Share() {
					held[i] += 16 << 10
					b.Add(16 << 10)
					moved = true
				}
			}
		}
		check.Same(t, true, b.Over() <= 0, "%d holders are over the limit by %d bytes", holders, b.Over())
		check.Same(t, true, held[0] <= b.limit/4 && held[0] >= b.limit/(shares+holders)-16<<10, "one of %d holders has %d bytes", holders, held[0])
	}
}

func TestBodiesAndPromises(t *testing.T) {
	b := New(8 << 20)
	check.Same(t, false, b.Hold(3<<20, Body), "a body larger than a share is kept")
	check.Same(t, true, b.Hold(2<<20, Body), "one of a share is kept")
	check.Same(t, "2097152 1", fmt.Sprint(b.held.Load(), b.refused[Body].Load()), "bytes held, and bodies refused")
	check.Same(t, [2]bool{true, false}, [2]bool{b.Promise(4 << 20), b.Promise(1)}, "half of the limit is promised, and more")
	check.Same(t, 6, must.Get(testutil.GatherAndCount(registered(b)))(t), "metrics: what is held, the limit and four kinds of refusals")
	b.Promise(-4 << 20)
	b.Add(3 << 20)
	check.Same(t, false, b.Promise(1), "bytes are promised although more than half is held")
	b.Add(-5 << 20)
	check.Same(t, [2]int64{}, [2]int64{b.held.Load(), b.promised.Load()}, "bytes held and promised")
}

func TestLogIsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		b, log := New(1<<20), slog.New(slog.NewTextHandler(&text, nil))
		for range 100 {
			b.Refuse(Stream)
			b.Log(log)
			time.Sleep(time.Second)
		}
		check.Same(t, 10, strings.Count(text.String(), "too much memory"), "lines in 100 s of %s", &text)
		time.Sleep(time.Hour)
		b.Log(log)
		text.Reset()
		time.Sleep(time.Hour)
		b.Log(log)
		check.Same(t, "", text.String(), "logged without a refusal")
	})
}

// registered returns a registry with the metrics of b.
func registered(b *Bound) *prometheus.Registry {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(b.Metrics()...)
	return reg
}

func TestMetrics(t *testing.T) {
	b := New(1 << 30)
	b.Add(7)
	b.Refuse(Stream)
	must.Do(t, testutil.GatherAndCompare(registered(b), strings.NewReader(`
# HELP fairlead_memory_held_bytes Bytes held for connections: input, output, heads and bodies that wait.
# TYPE fairlead_memory_held_bytes gauge
fairlead_memory_held_bytes 7
# HELP fairlead_memory_limit_bytes Limit of fairlead_memory_held_bytes: a quarter of the memory limit.
# TYPE fairlead_memory_limit_bytes gauge
fairlead_memory_limit_bytes 1.073741824e+09
# HELP fairlead_memory_refused_total Refusals because too much memory is held: stream (a request on a connection that holds much), connection (the largest was closed, or one over HTTP/1.1 was refused), body (not kept for a retry), head (over HTTP/1.1, without room in its time).
# TYPE fairlead_memory_refused_total counter
fairlead_memory_refused_total{what="stream"} 1
fairlead_memory_refused_total{what="connection"} 0
fairlead_memory_refused_total{what="body"} 0
fairlead_memory_refused_total{what="head"} 0
`)))
}
