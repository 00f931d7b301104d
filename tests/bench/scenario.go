package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

type scenario struct {
	name, about string
	quick       bool // part of the short run
	run         func(ctx context.Context, w *world)
}

func always(path string) func(int, int) load.Request {
	r := load.Request{Path: path, Token: token()}
	return func(int, int) load.Request { return r }
}

// gets is a load of small objects. peer.at adds the address.
func gets(conns, streams int) load.Config {
	return load.Config{Connections: conns, Streams: streams, Size: objectSize, Next: always(resources + "/one")}
}

func paced(c load.Config, rate float64) load.Config {
	c.Rate, c.Streams = rate, maxStreams
	return c
}

// list returns all scenarios, in order. Memory comes first: load enlarges a process's heap permanently.
func (o *options) list() []scenario {
	proxies := []string{fairlead, reverse, haproxy, nginx, nghttpx}
	everybody := []string{fairlead, reverse, haproxy, nginx, nghttpx, aggregator, direct}
	lists := gets(4, 4)
	lists.Size, lists.Next = listSize, always(resources)
	return []scenario{
		o.watching(),
		loads("get-8x8", "GET 1 KB, 8 connections × 8 streams", true, everybody, gets(8, 8)),
		loads("get-1x1", "GET 1 KB, 1 × 1", false, proxies, gets(1, 1)),
		loads("get-8x1", "GET 1 KB, 8 × 1", false, proxies, gets(8, 1)),
		loads("get-100x1", "GET 1 KB, 100 × 1", false, proxies, gets(100, 1)),
		loads("list-4x4", "LIST 100 KB, 4 × 4", true, everybody, lists),
		http1("http1-get-8", "GET 1 KB over HTTP/1.1, 8 connections", resources+"/one", 8),
		http1("http1-get-100", "the same, 100 connections", resources+"/one", 100),
		http1("http1-list-8", "LIST 100 KB over HTTP/1.1, 8 connections", resources, 8),
		{name: "paced-8x8", about: "GET 1 KB at 60 % of the lower saturation, 8 connections", run: saturated},
		// The latency that a proxy adds to single requests: at this rate they seldom overlap.
		loads(single, "GET 1 KB on one connection, 100 a second: one at a time", false, []string{fairlead, haproxy, nghttpx, direct}, paced(gets(1, 1), 100)),
		loads("apis", "GET /apis, 4 × 4", false, []string{fairlead, aggregator}, load.Config{Connections: 4, Streams: 4, Next: always("/apis")}),
		{name: "identity", about: "GET 1 KB at 500/s, delegated, by certificate: front-proxy identity and impersonation", run: identities},
		loads("get-1x1000", "GET 1 KB, 1 × 1,000", false, proxies, gets(1, 1000)),
		loads("get-1000x1", "GET 1 KB, 1,000 × 1", false, proxies, gets(1000, 1)),
		{name: "distance", about: "endless bodies from a backend and from a client 50 and 200 ms away, 1 and 20 streams", run: distance},
		{name: "visits", about: "a new connection, /api, /apis, /apis unchanged, GET 1 KB, with certificate and with token", run: visits},
		{name: "kwok", about: "a cluster of 100 nodes (with -full 500) by kwok: directly, through one Fairlead, through three", run: simulated},
		{name: "rest", about: "nobody asks; 0, 10, 1,000 (with -full 10,000) APIServices, five on an endpoint", run: idleness},
	}
}

// loads measures peers under one load.
func loads(name, about string, quick bool, peers []string, c load.Config) scenario {
	return scenario{name: name, about: about, quick: quick, run: func(ctx context.Context, w *world) {
		w.compare(ctx, name, w.want(ctx, peers...), func(*peer) load.Config { return c })
	}}
}

// compare measures peers, round by round, and then takes a profile of Fairlead.
func (w *world) compare(ctx context.Context, name string, list []*peer, of func(*peer) load.Config) {
	missed := map[*peer]int{}
	inTurns(list, w.o.rounds, func(p *peer) {
		s, err := w.measure(ctx, p, of(p))
		if err != nil {
			// For example, the load fell behind its rate for a moment. The round does not count, unless most fail.
			if missed[p]++; ctx.Err() != nil || 2*missed[p] > w.o.rounds {
				try.Do(fmt.Errorf("measuring %s: %w", p.name, err))
			}
			fmt.Fprintf(os.Stderr, "bench: %s: a round of %s does not count: %v\n", name, p.name, err)
			s = sample{}
		}
		w.r.add(name, p.name, s)
	})
	if p := w.peers[fairlead]; slices.Contains(list, p) {
		w.profile(ctx, p, name, of(p))
	}
}

// profile loads a Fairlead once more and saves a CPU profile, with -profile.
func (w *world) profile(ctx context.Context, p *peer, name string, c load.Config) {
	if w.o.profile {
		l := try.Get(load.Start(ctx, p.at(c)))
		w.keep(ctx, p, "/debug/pprof/profile?seconds=5", name)
		try.Do(l.Close())
	}
}

// inTurns calls measure for each of a list in each round. Each is the first in turn.
func inTurns[T any](list []T, rounds int, measure func(T)) {
	for round := range rounds {
		for i := range list {
			measure(list[(i+round)%len(list)])
		}
	}
}

// at directs a load at a peer.
func (p *peer) at(c load.Config) load.Config {
	c.Address, c.TLS = p.address, p.tls
	return c
}

// measure loads one peer, and returns what the load cost between two moments.
func (w *world) measure(ctx context.Context, p *peer, c load.Config) (s sample, err error) {
	defer try.Catch(&err)
	l := try.Get(load.Start(ctx, p.at(c)))
	defer func() { err = errors.Join(err, l.Close()) }()
	const warm = 300 * time.Millisecond // before it is measured
	pause(ctx, warm)
	cpu, before := p.cpu(), l.Snapshot()
	pause(ctx, w.o.duration)
	cpu = p.cpu() - cpu
	return newSample(before, l.Snapshot(), cpu)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
		try.Do(ctx.Err())
	case <-time.After(d):
	}
}
