package proxy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// givenUp bounds how fast one user may give up requests that have just begun. Each is work for a backend that costs the user nothing (CVE-2023-44487), and
// the backends' connections are everybody's: Go's HTTP/2 server ends one on which requests come and go faster than it begins them. What proxy/h2 allows a
// connection does not stop a user who opens connection after connection. Whoever owes gets 429 until it is paid off, and no backend hears of it.
//
// Only who gives up pays: other requests look at one word, which changes when somebody begins to owe.
type givenUp struct {
	burst  int           // that may be given up at once
	pause  time.Duration // after which one more may
	shards [16]owing
	seed   maphash.Seed
	began  time.Time
	// until is when nobody owes any more, since began. Zero: nobody does.
	until   atomic.Int64
	refused prometheus.Counter
	answer  *h2.Answer // errGivenUp over HTTP/2, in JSON whatever the client would like best: rendering it for each would pay
}

// owing are the users of a shard.
type owing struct {
	mu   sync.Mutex              // guards paid
	paid map[payer]time.Duration // when all that was given up will be paid off, since givenUp.began
}

// payer is who gives up: a request's source, over all connections. Anybody can make tokens up, so that all unproven ones of an
// address are one payer, apart from who comes without: that costs less to do, and new tokens are to be served all the same.
type payer struct {
	bound.Source
	bearer bool // unproven
}

const (
	// quickly is how soon a request must be given up to be charged for. What has run longer held a place of its APIService's limit meanwhile, or was the
	// local apiserver's to limit; and a client may well end all its watches at once.
	quickly = time.Second
	// givenUpBurst is twice what proxy/h2 allows one connection, and so is givenUpPause's rate of 200 a second: controllers stay far below one.
	givenUpBurst = 1000
	givenUpPause = 5 * time.Millisecond
	// maxOwing bounds the users of a shard: 8,192 in all, about 1 MiB.
	maxOwing = 512
)

func newGivenUp() *givenUp {
	g := &givenUp{burst: givenUpBurst, pause: givenUpPause, seed: maphash.MakeSeed(), began: time.Now(), answer: readyAnswer(errGivenUp())}
	for i := range g.shards {
		g.shards[i].paid = map[payer]time.Duration{}
	}
	g.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_given_up_refused_total",
		Help: "Requests answered with 429 because their user had given up too many others within a second of their beginning.",
	})
	return g
}

// ended is told of every forwarded request that its client has given up.
func (g *givenUp) ended(d *Decision, h *Head, took time.Duration) {
	if took >= quickly || d.Action != ToLocal && d.Action != ToRemote {
		return
	}
	g.charge(payerOf(d, h), 1)
}

// charge has who pay for n requests, burst at most.
func (g *givenUp) charge(who payer, n int) {
	now := time.Since(g.began)
	full := time.Duration(g.burst) * g.pause
	s := g.shard(who)
	s.mu.Lock()
	if len(s.paid) >= maxOwing {
		s.sweep(now)
	}
	at := min(max(s.paid[who], now)+time.Duration(n)*g.pause, now+2*full) // whoever owes more still waits no longer than what is allowed at once takes to come back
	s.paid[who] = at
	s.mu.Unlock()
	if free := int64(at - full); free > int64(now) {
		for old := g.until.Load(); old < free && !g.until.CompareAndSwap(old, free); {
			old = g.until.Load()
		}
	}
}

// owes reports whether the request's user has to wait.
func (g *givenUp) owes(d *Decision, h *Head) bool {
	until := g.until.Load()
	if until == 0 {
		return false
	}
	now := time.Since(g.began)
	if until <= int64(now) {
		g.until.CompareAndSwap(until, 0)
		return false
	}
	who := payerOf(d, h)
	s := g.shard(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paid[who]-now > time.Duration(g.burst)*g.pause
}

func (g *givenUp) shard(who payer) *owing {
	return &g.shards[maphash.Comparable(g.seed, who)%uint64(len(g.shards))]
}

// sweep forgets who has paid; if nobody has, somebody. The mutex is held.
func (s *owing) sweep(now time.Duration) {
	for who, at := range s.paid {
		if at <= now {
			delete(s.paid, who)
		}
	}
	for who := range s.paid {
		if len(s.paid) < maxOwing {
			return
		}
		delete(s.paid, who)
	}
}

func payerOf(d *Decision, h *Head) payer {
	from := d.source(h)
	from.Conn = ""
	return payer{from, from.User == "" && d.Credentials.Kind == authn.KindToken}
}
