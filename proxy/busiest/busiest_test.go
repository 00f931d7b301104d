package busiest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// someone is a request of one of n callers, of whom the first send most. Bodies are of 1 KiB.
func someone(n int, random *rand.Rand) *Request {
	i := int(float64(n) * random.Float64() * random.Float64() * random.Float64() * random.Float64())
	return &Request{
		User: fmt.Sprint("u", i%97), Agent: fmt.Sprint("a", i), Source: fmt.Sprint("10.0.0.", i%251), Verb: "list", Group: "apps", Resource: "deployments", Subresource: "scale", Server: "local",
		Counts: Counts{Requests: 1, Out: 1 << 10, Slowest: float64(i)},
	}
}

// With any number of callers, in any view, over slots, a row counts no more than was sent and lacks
// no more than Missed, which is at most a 256th of the weight; and who has sent more than that is
// there. The totals are exact.
func TestAgainstAnExactCount(t *testing.T) {
	for _, n := range []int{10, 500, 5000, 200_000} {
		c, random, exact := New(), rand.New(rand.NewPCG(1, uint64(n))), map[string]map[string]*Counts{"agent": {}, "user": {}}
		for i := range 300_000 {
			r := someone(n, random)
			for view, name := range map[string]string{"agent": r.Agent, "user": r.User} {
				if exact[view][name] == nil {
					exact[view][name] = new(Counts)
				}
				exact[view][name].add(&r.Counts)
			}
			c.Add(uint32(i), r)
			if i%100 == 0 { // as soon as a stripe is half full
				c.flush(i%70_000 == 0)
			}
		}
		for view, want := range exact {
			for _, window := range []string{"minute", "hour"} {
				a := c.Ask(view, window)
				check.Same(t, 300_000, int(a.Total.Requests), "%d callers: requests", n)
				if share := a.Total.weight() / keptRows; a.Missed > share || n <= keptRows && a.Missed > 0 {
					t.Errorf("%d callers, by %s in a %s: %d missed of %d", n, view, window, a.Missed, share)
				}
				rows := map[string]Counts{}
				for _, r := range a.Rows {
					rows[r.User+r.Agent] = r.Counts
				}
				for name, sent := range want {
					got := rows[name]
					if got.Requests > sent.Requests || got.Out > sent.Out || got.Slowest > sent.Slowest || got.weight()+a.Missed < sent.weight() {
						t.Fatalf("%d callers, by %s in a %s, %s: %+v of %+v, %d missed", n, view, window, name, got, sent, a.Missed)
					}
				}
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
		r := &Request{User: "jane", Verb: "watch", Resource: "pods", Counts: Counts{Requests: 1}}
		open := []*Open{c.Begin(r), c.Begin(r)}
		c.Add(1, r)
		rows := func(window string) (requests, watches int64, from time.Duration) {
			a := c.Ask("caller", window)
			a.Top("requests", 9)
			check.Same(t, []Row{{Who{User: "jane", Verb: "watch", Resource: "pods"}, a.Total}}, a.Rows, "rows of a %s", window)
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
				open[0].End()
			}
			want(at.minute, at.hour, at.watches, at.from, at.fromHour)
		}
		open[1].End()
		check.Same(t, 0, len(c.Ask("caller", "hour").Rows), "rows in the end")
		(*Open)(nil).End()
	})
}

// A million callers, all of them new and with texts of 8 KiB, in each slot of both windows, with
// as many open watches: the memory is that of docs/bounds.md.
func TestMemory(t *testing.T) {
	const most = 10 << 20
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const callers, long = 1_000_000, 8 << 10
	text := make([]byte, callers+long)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}
	c, texts := New(), string(text)
	for i := range callers {
		one := texts[i : i+long]
		r := &Request{User: one, Impersonator: one, Agent: one, Source: one, Verb: one, Group: one, Resource: one, Subresource: one, Server: one, Counts: Counts{Requests: 1, In: int64(i)}}
		c.Add(uint32(i), r)
		if i%500 == 0 {
			c.flush(i%5000 == 0)
		}
		if i%100 == 0 {
			c.Begin(r)
		}
	}
	used := heap() - before
	a := c.Ask("caller", "hour")
	if used > most || a.Total.Watches != 10_000 || len(a.Rows) < maxOpen {
		t.Errorf("%d bytes, want at most %d; %d watches, %d rows", used, most, a.Total.Watches, len(a.Rows))
	}
	t.Logf("%d bytes", used)
}

// Counting a request of a known row allocates nothing.
func TestAddAllocates(t *testing.T) {
	c, r := New(), someone(1, rand.New(rand.NewPCG(1, 1)))
	if n := check.Allocations(func() { c.Add(1, r) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Requests are counted once each while slots close, whoever asks; only what finds no room has no
// row.
func TestConcurrently(t *testing.T) {
	c := New()
	ctx, stop := context.WithCancel(t.Context())
	var askers, senders sync.WaitGroup
	askers.Go(func() { _ = c.Run(ctx) })
	askers.Go(func() {
		for ctx.Err() == nil {
			c.Ask("user", "hour")
			c.flush(true)
		}
	})
	for i := range 8 {
		senders.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 10_000 {
				r := someone(1000, random)
				c.Add(uint32(i), r)
				c.Begin(r).End()
			}
		})
	}
	senders.Wait()
	stop()
	askers.Wait()
	a := c.Ask("user", "hour")
	a.Top("bytes", 1000)
	check.Same(t, 0, a.Total.Watches, "open")
	if a.Total.Requests != 80_000 && c.hour[slots-1] == nil || len(a.Rows) > 97 {
		t.Errorf("%d requests, %d rows", a.Total.Requests, len(a.Rows))
	}
}

// Rows of several replicas are added up by their text. The order is the one that is asked for; what
// has no row is with the others.
func TestTop(t *testing.T) {
	row := func(user string, requests, out int64) Row {
		return Row{Who{User: user}, Counts{Requests: requests, Out: out}}
	}
	var all Answer
	for _, rows := range [][]Row{{row("a", 5, 0), row("b", 1, 1<<20), row("c", 1, 0)}, {row("a", 5, 7), row("c", 1, 1)}} {
		one := &Answer{From: time.Unix(int64(len(rows)), 0), To: time.Unix(int64(10*len(rows)), 0), Rows: rows, Missed: 3}
		one.Total = Counts{Requests: 10, Out: 2 << 20}
		all.Add(one)
	}
	byRequests := all
	all.Top("weight", 2)
	check.Same(t, []Row{row("b", 1, 1<<20), row("a", 10, 7)}, all.Rows, "the heaviest")
	check.Same(t, Counts{Requests: 9, Out: 3<<20 - 7}, all.Others, "others")
	check.Same(t, Answer{From: time.Unix(2, 0), To: time.Unix(30, 0), Missed: 6}, Answer{From: all.From, To: all.To, Missed: all.Missed}, "window")
	byRequests.Top("requests", 1)
	check.Same(t, []Row{row("a", 10, 7)}, byRequests.Rows, "the most frequent")
}
