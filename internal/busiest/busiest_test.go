package busiest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// someone is a request of one of n callers, of whom the first send most. Bodies are of 1 KiB.
func someone(n int, random *rand.Rand) *Row {
	i := int(float64(n) * random.Float64() * random.Float64() * random.Float64() * random.Float64())
	return &Row{
		Who:   Who{User: fmt.Sprint("u", i%97), Agent: fmt.Sprint("a", i), Source: fmt.Sprint("10.0.0.", i%251), Verb: "list", Resource: "deployments", Server: "local"},
		Group: "apps", Subresource: "scale", Counts: Counts{Requests: 1, Out: 1 << 10, Slowest: float64(i)},
	}
}

// With any number of callers, in any view, over slots, a row counts no more than was sent and lacks no more than
// Missed, which is at most a 256th of the weight; and who has sent more than that is there. The totals are exact.
func TestAgainstAnExactCount(t *testing.T) {
	for _, n := range []int{10, 500, 5000, 100_000} {
		synctest.Test(t, func(t *testing.T) { againstAnExactCount(t, n) })
	}
}

func againstAnExactCount(t *testing.T, n int) {
	const requests = 120_000
	c, random, exact := New(), rand.New(rand.NewPCG(1, uint64(n))), map[string]map[string]*Counts{"agent": {}, "user": {}}
	for i := range requests {
		r := someone(n, random)
		for view, name := range map[string]string{"agent": r.Agent, "user": r.User} {
			if exact[view][name] == nil {
				exact[view][name] = new(Counts)
			}
			exact[view][name].Add(&r.Counts, 1)
		}
		c.Add(uint32(i), r)
		if i%(requests/slots) == requests/slots-1 && i < requests-1 {
			time.Sleep(10 * time.Second) // the slot of a minute ends
		}
		if i%100 == 0 { // as soon as a stripe is half full
			c.flush()
		}
	}
	for view, want := range exact {
		for _, window := range []string{"minute", "hour"} {
			a, rows := c.Ask(view, window), map[string]Counts{}
			check.Same(t, requests, int(a.Total.Requests), "%d callers: requests", n)
			share := 2 * a.Total.weight() / maxRows
			check.Same(t, false, a.Missed > share || n <= maxRows/2 && a.Missed > 0, "%d callers, by %s in a %s: %d missed of %d", n, view, window, a.Missed, share)
			for _, r := range a.Rows {
				rows[r.User+r.Agent] = r.Counts
			}
			for name, sent := range want {
				got := rows[name]
				must.Be(t, got.Requests <= sent.Requests && got.Out <= sent.Out && got.Slowest <= sent.Slowest && got.weight()+a.Missed >= sent.weight(), "%d callers, by %s in a %s, %s: %+v of %+v, %d missed", n, view, window, name, got, sent, a.Missed)
			}
		}
	}
}

// The windows move: a minute's rows are gone after one, an hour's after one, and an answer says
// what it covers. What is open stays.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := New(), time.Now()
		must.Run(t, c.Run)
		r := &Row{Who: Who{User: "jane", Verb: "watch", Resource: "pods"}, Counts: Counts{Requests: 1}}
		end := []func(){c.Begin(r), c.Begin(r)}
		c.Add(1, r)
		rows := func(window string) (requests, watches int64, from time.Duration) {
			a := c.Ask("caller", window)
			a.Top("requests", 9)
			check.Same(t, []Row{{Who: r.Who, Counts: a.Total}}, a.Rows, "rows of a %s", window)
			check.Same(t, Counts{}, a.Others, "others of a %s", window)
			return a.Total.Requests, a.Total.Watches, a.From.Sub(began)
		}
		want := func(minute, hour, watches int64, from, fromHour time.Duration) {
			t.Helper()
			m, w, f := rows("minute")
			h, _, fh := rows("hour")
			check.Same(t, []any{minute, hour, watches, from, fromHour}, []any{m, h, w, f, fh}, "requests in a minute and an hour, watches, begin of both, after %v", time.Since(began))
		}
		want(1, 1, 2, 0, 0) // at once
		for _, at := range []struct {
			after                 time.Duration
			minute, hour, watches int64
			from, fromHour        time.Duration
		}{
			{59 * time.Second, 1, 1, 2, 0, 0},
			{61 * time.Second, 0, 1, 2, 10 * time.Second, 0},
			{59*time.Minute + 5*time.Second, 0, 1, 2, 58*time.Minute + 10*time.Second, 0},
			{61*time.Minute + 5*time.Second, 0, 0, 1, 60*time.Minute + 10*time.Second, 10 * time.Minute},
		} {
			time.Sleep(time.Until(began.Add(at.after)))
			if at.watches == 1 {
				end[0]()
			}
			want(at.minute, at.hour, at.watches, at.from, at.fromHour)
		}
		end[1]()
		check.Same(t, 0, len(c.Ask("caller", "hour").Rows), "rows in the end")
	})
}

// Who has watches in many ways takes no room from others.
func TestOpenWatchesOfMany(t *testing.T) {
	c := New()
	for i := range 2 * maxOpen {
		c.Begin(&Row{Who: Who{User: "greedy", Agent: fmt.Sprint(i)}})
	}
	c.Begin(&Row{Who: Who{User: "jane"}})()
	c.Begin(&Row{Who: Who{User: "jane"}})
	a := c.Ask("user", "minute")
	a.Top("watches", 2)
	check.Same(t, []Row{{Who: Who{User: "greedy"}, Counts: Counts{Watches: 2 * maxOpen}}, {Who: Who{User: "jane"}, Counts: Counts{Watches: 1}}}, a.Rows, "watches by user")
}

// 250,000 callers, all of them new and with texts of 8 KiB, in each slot of both windows, with
// as many open watches: the memory is that of docs/bounds.md.
func TestMemory(t *testing.T) { synctest.Test(t, testMemory) }

func testMemory(t *testing.T) {
	const most = 10 << 20
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const callers, long = 250_000, 8 << 10
	text := make([]byte, callers+long)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}
	c, texts := New(), string(text)
	for i := range callers {
		one := texts[i : i+long]
		r := &Row{Who: Who{one, one, one, one, one, one}, Group: one, Subresource: one, Counts: Counts{Requests: 1, In: int64(i)}}
		c.Add(uint32(i), r)
		if i%500 == 0 {
			if i%5000 == 0 {
				time.Sleep(10 * time.Minute) // a slot of both windows ends
			}
			c.flush()
		}
		if i%100 == 0 {
			c.Begin(r)
		}
	}
	used := heap() - before
	a := c.Ask("caller", "hour")
	check.Same(t, true, used <= most && a.Total.Watches == 2500 && len(a.Rows) >= maxOpen, "%d bytes, want at most %d; %d watches, %d rows", used, most, a.Total.Watches, len(a.Rows))
	t.Logf("%d bytes", used)
}

// Counting a request of a known row allocates nothing.
func TestAddAllocates(t *testing.T) {
	c, r := New(), someone(1, rand.New(rand.NewPCG(1, 1)))
	check.Same(t, 0, check.Allocations(func() { c.Add(1, r) }), "allocations")
}

// Requests are counted once each while slots close, whoever asks; only what finds no room has no row.
func TestConcurrently(t *testing.T) {
	c := New()
	c.windows[0].length = 0 // a minute's slots close with each flush
	ctx, stop := context.WithCancel(t.Context())
	var askers, senders sync.WaitGroup
	askers.Go(func() { _ = c.Run(ctx) })
	askers.Go(func() {
		for ctx.Err() == nil {
			c.Ask("user", "hour")
		}
	})
	for i := range 8 {
		senders.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 10_000 {
				r := someone(1000, random)
				c.Add(uint32(i), r)
				c.Begin(r)()
			}
		})
	}
	senders.Wait()
	stop()
	askers.Wait()
	a := c.Ask("user", "hour")
	a.Top("bytes", 1000)
	check.Same(t, 0, a.Total.Watches, "open")
	check.Same(t, true, a.Total.Requests == 80_000 && len(a.Rows) <= 98, "%d requests, %d rows", a.Total.Requests, len(a.Rows)) // with one without a name
}

// Equal rows, as of several replicas, are one. The order is the one that is asked for; what has no
// row is with the others.
func TestTop(t *testing.T) {
	row := func(user string, requests, out int64) Row {
		return Row{Who: Who{User: user}, Counts: Counts{Requests: requests, Out: out}}
	}
	all := Answer{Total: Counts{Requests: 20, Out: 4 << 20}, Rows: []Row{row("a", 5, 0), row("b", 1, 1<<20), row("c", 1, 0), row("a", 5, 7), row("c", 1, 1)}}
	byRequests := all
	all.Top("weight", 2)
	check.Same(t, []Row{row("b", 1, 1<<20), row("a", 10, 7)}, all.Rows, "the heaviest")
	check.Same(t, Counts{Requests: 9, Out: 3<<20 - 7}, all.Others, "others")
	byRequests.Top("requests", 1)
	check.Same(t, []Row{row("a", 10, 7)}, byRequests.Rows, "the most frequent")
}

// A narrow table cuts a name between two characters.
func TestTableCuts(t *testing.T) {
	a := &Answer{Rows: []Row{{Who: Who{User: "x" + strings.Repeat("ü", 16)}}}}
	_, table := a.Table(false)
	check.Same(t, "x"+strings.Repeat("ü", 15)+"…", table[1][0], "user")
}
