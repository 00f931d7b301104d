package proxy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
)

// givenUp limits how fast one user may cancel requests that have just begun. Each is work for a
// backend at no cost to the user (CVE-2023-44487), and users share the backends' connections: Go's
// HTTP/2 server closes a connection on which requests come and go faster than it starts them.
// proxy/h2's limits for a connection do not stop a user who opens one connection after another. A
// user over the limit gets 429 until the debt has run down; no backend gets the request.
//
// Only users who cancel are charged. Other requests read one atomic, unless some user is over the
// limit.
type givenUp struct {
	burst int                            // requests that may be canceled at once
	pause time.Duration                  // time after which one more may be canceled
	debts *memo.Cache[account, struct{}] // each expires when its user's debt is zero
	seed  maphash.Seed

	mu sync.Mutex // orders charges
	// until is when the last user will be below the limit again, in Unix nanoseconds. Zero means
	// all are.
	until   atomic.Int64
	refused prometheus.Counter
	answer  *h2.Answer // errGivenUp over HTTP/2, always in JSON: encoding it for each refusal would cost too much
}

// account identifies a user: a request's source, over all connections. Tokens can be made up, so
// all unproven tokens of an address are one account. Requests without a token are another one: they
// cost less, and must not keep new tokens from being served.
type account struct {
	bound.Source
	bearer bool // an unproven token
}

const (
	// quickly is the time within which a canceled request is charged. A request that ran longer
	// held a place of its APIService's limit, or the local apiserver limited it; and a client may
	// well end all its watches at once.
	quickly = time.Second
	// givenUpBurst and the rate of givenUpPause, 200 a second, are twice proxy/h2's limits for one
	// connection; controllers stay far below one.
	givenUpBurst = 1000
	givenUpPause = 5 * time.Millisecond
	// maxAccounts limits the charged users, about 1 MiB.
	maxAccounts = 8192
)

func newGivenUp() *givenUp {
	return &givenUp{
		burst: givenUpBurst, pause: givenUpPause, seed: maphash.MakeSeed(), answer: readyAnswer(errGivenUp),
		debts: memo.New[account, struct{}](memo.Config{Entries: maxAccounts, Bytes: maxAccounts}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_given_up_refused_total",
			Help: "Requests answered with 429 because their user had canceled too many others within a second.",
		}),
	}
}

// ended is called for every forwarded request that its client has given up. A watch that was
// answered has no other end.
func (g *givenUp) ended(d *Decision, h *Head, status int, took time.Duration) {
	if took >= quickly || d.LongRunning && status != statusClientGone || d.Action != ToLocal && d.Action != ToRemote {
		return
	}
	g.charge(accountOf(d, h), 1)
}

// charge charges a user for n requests. The debt never exceeds twice the burst, so that a user
// waits no longer than the burst takes to refill.
func (g *givenUp) charge(who account, n int) {
	full := time.Duration(g.burst) * g.pause
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	at := now.Add(min(g.debt(who, now)+time.Duration(n)*g.pause, 2*full))
	hash := maphash.Comparable(g.seed, who)
	g.debts.Put(&memo.Entry[account, struct{}]{Hash: hash, Key: who, Size: 1, Until: at}, who.equal)
	if below := at.Add(-full); below.After(now) {
		g.until.Store(max(g.until.Load(), below.UnixNano()))
	}
}

// debt returns the time until a user's debt will be zero.
func (g *givenUp) debt(who account, now time.Time) time.Duration {
	if e := g.debts.Get(maphash.Comparable(g.seed, who), now, who.equal); e != nil {
		return e.Until.Sub(now)
	}
	return 0
}

// overLimit reports whether the request's user is over the limit.
func (g *givenUp) overLimit(d *Decision, h *Head) bool {
	until := g.until.Load()
	if until == 0 {
		return false
	}
	now := time.Now()
	if until <= now.UnixNano() {
		g.until.CompareAndSwap(until, 0)
		return false
	}
	return g.debt(accountOf(d, h), now) > time.Duration(g.burst)*g.pause
}

func (a account) equal(b account) bool { return a == b }

func accountOf(d *Decision, h *Head) account {
	from := d.source(h).AnyConn()
	return account{from, from.User == "" && d.Credentials.Kind == authn.KindToken}
}
