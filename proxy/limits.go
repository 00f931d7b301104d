package proxy

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// limits limit the requests in flight to all remotes together, without long-running ones
// (--max-requests-inflight, --max-mutating-requests-inflight). Requests to the local apiserver are
// limited by its priority and fairness.
type limits struct {
	reads, writes limit
}

// limit is one limit. The zero limit limits nothing.
type limit struct {
	max    int64
	share  int64 // of max, for one backend: half, so that a slow one leaves room for others; at least one
	write  bool
	places bound.Places
}

func (l *limits) init(reads, writes int) {
	l.writes.write = true
	for _, x := range []struct {
		l   *limit
		max int
	}{{&l.reads, reads}, {&l.writes, writes}} {
		x.l.max, x.l.share, x.l.places.Lend = int64(x.max), int64(x.max+1)/2, true
	}
}

func (l *limits) of(verb string) *limit {
	switch verb {
	case "get", "list", "watch", "head", "options", "proxy":
		return &l.reads
	}
	return &l.writes
}

// place is what a forwarded request holds while it is in flight. The zero place holds nothing.
type place struct {
	// slow says, before the place is taken, that a stranger can make the request last.
	slow bool
	// server is one of all remotes' places, share one of its upstream's share of them, backend one
	// of the upstream's own.
	server, share, backend bound.Place
	count                  *atomic.Int64
}

// source returns the source of a request for all limits: its user, or with impersonation the
// impersonator; the token if it is proven, because only the local apiserver knows its user;
// otherwise the client's address and connection.
func (d *Decision) source(h *Head) bound.Source {
	u := caller(d)
	if u == nil && d.Pool == authn.PoolProven {
		return bound.Source{User: d.Credentials.Payer}
	}
	return bound.Caller(u, h.Remote)
}

// underWay counts the forwarded requests in flight. longRunning includes upgraded sessions.
type underWay struct{ requests, longRunning atomic.Int64 }

// UnderWay returns the number of forwarded requests in flight, without upgraded sessions.
func (p *Proxy) UnderWay() int {
	return int(p.underWay.requests.Load()+p.underWay.longRunning.Load()) - p.Sessions()
}

// active returns the gauges of requests in flight.
func (p *Proxy) active() []prometheus.Collector {
	var list []prometheus.Collector
	for kind, f := range map[string]func() int{
		"request": func() int { return int(p.underWay.requests.Load()) },
		"watch":   func() int { return max(int(p.underWay.longRunning.Load())-p.Sessions(), 0) },
		"session": p.Sessions,
	} {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "fairlead_requests_active",
			Help:        "Requests under way, by kind: request, watch (all long-running ones), session (upgraded).",
			ConstLabels: prometheus.Labels{"kind": kind},
		}, func() float64 { return float64(f()) }))
	}
	return list
}

// enter takes the places of a request that is ready to be forwarded: for a remote, one of all
// remotes and one of its upstream; for an unproven token, one of its pool. The local apiserver
// limits other requests itself.
func (p *Proxy) enter(held *place, d *Decision, u *backend.Upstream, from bound.Source) *apierrors.StatusError {
	if d.Action != ToRemote && d.Pool != authn.PoolUnproven {
		held.begin(p, d)
		return nil
	}
	var ok bool
	if l := p.limits.of(d.Request.Verb); d.Action == ToRemote && !d.LongRunning && l.max > 0 {
		if held.server, ok = l.places.Take(from, 1, l.max); !ok {
			u.Refuse(false)
			return errBusy("the front door")
		}
		if held.share, ok = u.AcquireShare(from, l.write, l.share); !ok {
			held.leave()
			return errBusy(d.name())
		}
	}
	if held.backend, ok = u.Acquire(from, d.LongRunning || held.slow); !ok {
		held.leave()
		return errBusy(d.name())
	}
	held.begin(p, d)
	return nil
}

func (h *place) begin(p *Proxy, d *Decision) {
	h.count = &p.underWay.requests
	if d.LongRunning {
		h.count = &p.underWay.longRunning
	}
	h.count.Add(1)
}

func (h *place) leave() {
	if h.count != nil {
		h.count.Add(-1)
	}
	h.server.Leave()
	h.share.Leave()
	h.backend.Leave()
	*h = place{}
}

// goAway decides at random whether a client is asked to reconnect (--goaway-chance): clients that
// never close their connections would otherwise stay with the replica that started first.
func (p *Proxy) goAway() bool {
	return p.cfg.GoAwayChance > 0 && rand.Float64() < p.cfg.GoAwayChance //nolint:gosec // needs no secret
}

// RejectNew answers every new request with 429 and Retry-After (--shutdown-send-retry-after).
// Requests in flight continue. Health paths stay open.
func (p *Proxy) RejectNew() { p.rejecting.Store(true) }

// full reports whether a queue or a pool has no place for a request.
func full(err error) bool { return errors.Is(err, bound.ErrFull) }
