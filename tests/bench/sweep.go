package main

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// saturated compares latencies at the same rate: 60 % of the lower maximum of Fairlead and HAProxy in scenario get-8x8.
func saturated(ctx context.Context, w *world) {
	most := func(peer string) float64 {
		if s := w.r.of("get-8x8", peer); len(s.samples) > 0 {
			return s.spread(func(s sample) float64 { return s.Rate }).middle
		}
		return try.Get(w.measure(ctx, w.have(ctx, peer), gets(8, 8))).Rate
	}
	c := paced(gets(8, 1), 0.6*min(most(fairlead), most(haproxy)))
	w.compare(ctx, "paced-8x8", w.want(ctx, fairlead, haproxy), func(*peer) load.Config { return c })
}

// http1 measures HTTP/1.1 by net/http's client: peers share the price of what it does.
func http1(name, about, path string, conns int) scenario {
	return scenario{name: name, about: about, run: func(ctx context.Context, w *world) {
		w.compare(ctx, name, w.want(ctx, fairlead, reverse, haproxy, nginx), func(p *peer) load.Config {
			// A round's connections end after it: else they would be memory for collectors in the next.
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: p.tls.Clone(), MaxIdleConnsPerHost: conns, IdleConnTimeout: time.Second}}
			return load.Config{Connections: conns, Visit: func(ctx context.Context) error {
				return new(endless).exchange(ctx, client, http.MethodGet, "https://"+p.address+path)
			}}
		})
	}}
}

// identities compares both values of --local-identity for a caller with a certificate: their cost
// in Fairlead, and in kube-apiserver. It starts a Fairlead for each. Each is two peers: one counts
// Fairlead's processor time, the other kube-apiserver's.
func identities(ctx context.Context, w *world) {
	account := try.Get(w.Account(ctx, w.Endpoint(), "deploy", "managed"))
	proven := w.proven("bench", "dev", "ops")
	var list []*peer
	for _, way := range []string{"front-proxy", "impersonate"} {
		p := w.another(ctx, "by-"+way, "--local-identity="+way, "--kubeconfig="+account)
		p.tls = proven
		behind := p.as(way + ", kube-apiserver")
		behind.part = w.APIServers[0]
		list = append(list, p.as(way), behind)
	}
	// At 500 a second: kube-apiserver authorizes the caller, and also Fairlead if it impersonates the caller.
	c := paced(gets(8, 1), 500)
	c.Size, c.Next = 0, func(int, int) load.Request { return load.Request{Path: localPath} }
	w.compare(ctx, "identity", list, func(*peer) load.Config { return c })
}

func (p *peer) as(name string) *peer {
	other := *p
	other.name = name
	return &other
}

// fresh restarts a peer, because load enlarges its memory and its connections' windows.
func (w *world) fresh(ctx context.Context, p *peer) {
	if p.part == nil {
		return
	}
	try.Do(p.part.Restart(ctx))
	if p.front != nil {
		try.Do(w.WaitAvailable(ctx, p.front.Endpoint, group+"/v1"))
	}
}

// watching measures the resident memory of idle watches, and the cost of an event.
func (o *options) watching() scenario {
	const each = 1000 // per connection at most, below maxStreams
	conns := max(20, o.watches/each)
	about := fmt.Sprintf("%d idle watches on %d connections, then events on all", o.watches, conns)
	return scenario{name: "watches", about: about, quick: true, run: func(ctx context.Context, w *world) {
		for range o.rounds {
			for _, p := range w.want(ctx, fairlead, reverse, haproxy) {
				began := time.Now()
				w.fresh(ctx, p)
				ready := time.Since(began).Seconds()
				s := w.watch(ctx, p, conns)
				if p.front != nil {
					s.Available = ready
				}
				w.r.add("watches", p.name, s)
			}
		}
	}}
}

// watch opens watches on connections that have carried one request each, so that TLS handshakes are not measured.
func (w *world) watch(ctx context.Context, p *peer, conns int) (s sample) {
	n, done := w.o.watches, int64(conns)
	l := try.Get(load.Start(ctx, p.at(load.Config{Connections: conns})))
	defer func() { try.Do(l.Close()) }()
	l.Open(1, load.Request{Path: resources + "/one", Token: token()})
	try.Do(l.WaitDone(ctx, done))
	const settle = 25 * time.Second // idle: garbage, buffers and memory are released
	pause(ctx, settle)
	before := p.resident(own)
	l.Open(n/conns, load.Request{Path: resources + "?watch=true", Token: token(), Watch: true})
	// event makes the backend send one event on every watch, and waits for all.
	event := func() {
		try.Do(w.extension.Signal(syscall.SIGUSR1))
		done += int64(n)
		try.Do(l.WaitDone(ctx, done))
	}
	done += int64(n) // each begins with one
	try.Do(l.WaitDone(ctx, done))
	event()
	pause(ctx, settle)
	s.Watch = (p.resident(own) - before) / float64(n)
	if w.o.profile && p.front != nil {
		w.keep(ctx, p, "/debug/pprof/heap?gc=1", "watches.heap")
	}
	const events = 10
	cpu := p.cpu()
	var last []float64
	for range events {
		began := time.Now()
		event()
		last = append(last, millis(time.Since(began)))
	}
	s.CPU = float64((p.cpu() - cpu).Microseconds()) / float64(events*n)
	s.Last = newSpread(last).middle
	return s
}
