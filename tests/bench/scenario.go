package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

// scenario is one thing to measure.
type scenario struct {
	name, about string
	quick       bool // part of the short run
	run         func(ctx context.Context, w *world, o *options, r *results) error
}

// shape is a load that does not depend on the peer.
type shape struct {
	conns, streams int
	http1          bool
	rate           float64
	size           int
	next           func(conn, n int) load.Request
	visit          func(context.Context) error // instead of requests. Nil: requests
}

// always asks for one path as one user.
func always(path string) func(int, int) load.Request {
	r := load.Request{Path: path, Token: token(0)}
	return func(int, int) load.Request { return r }
}

func gets(conns, streams int) shape {
	return shape{conns: conns, streams: streams, size: objectSize, next: always(resources + "/one")}
}

// list is every scenario, in the order in which they run. Memory comes first: a process that has
// been under load has its heap already.
func (o *options) list() []scenario {
	proxies := []string{fairlead, reverse, haproxy, nginx, nghttpx}
	everybody := []string{fairlead, reverse, haproxy, nginx, nghttpx, aggregator, direct}
	return []scenario{
		watches(o),
		loads("get-8x8", "GET 1 KB, 8 connections × 8 streams", true, everybody, gets(8, 8)),
		loads("get-1x1", "GET 1 KB, 1 × 1", false, proxies, gets(1, 1)),
		loads("get-8x1", "GET 1 KB, 8 × 1", false, proxies, gets(8, 1)),
		loads("get-100x1", "GET 1 KB, 100 × 1", false, proxies, gets(100, 1)),
		loads("list-4x4", "LIST 100 KB, 4 × 4", true, everybody, shape{conns: 4, streams: 4, size: listSize, next: always(resources)}),
		loads("http1-get", "GET 1 KB over HTTP/1.1, 8 connections", false, []string{fairlead, reverse}, shape{conns: 8, http1: true, size: objectSize, next: always(resources + "/one")}),
		loads("http1-list", "LIST 100 KB over HTTP/1.1, 8 connections", false, []string{fairlead, reverse}, shape{conns: 8, http1: true, size: listSize, next: always(resources)}),
		paced(),
		alone(),
		loads("apis", "GET /apis, 4 × 4", false, []string{fairlead, aggregator}, shape{conns: 4, streams: 4, next: always("/apis")}),
		local(),
		identities(),
		loads("get-1x1000", "GET 1 KB, 1 × 1,000", false, proxies, gets(1, 1000)),
		loads("get-1000x1", "GET 1 KB, 1,000 × 1", false, proxies, gets(1000, 1)),
		bodies(),
		distance(),
		visits(),
		users(o),
		services(o),
		idleness(),
	}
}

// loads measures peers under one shape.
func loads(name, about string, quick bool, peers []string, s shape) scenario {
	return scenario{name: name, about: about, quick: quick, run: func(ctx context.Context, w *world, o *options, r *results) error {
		return w.rounds(ctx, o, r, name, peers, func(*peer) shape { return s })
	}}
}

// rounds measures all peers in turns, and takes a profile of Fairlead at the end.
func (w *world) rounds(ctx context.Context, o *options, r *results, name string, peers []string, of func(*peer) shape) error {
	if o.peers != "" {
		peers = strings.Split(o.peers, ",")
	}
	list, err := w.want(ctx, peers)
	if err != nil {
		return err
	}
	missed := map[*peer]int{}
	for round := range o.rounds {
		for i := range list {
			p := list[(i+round)%len(list)] // nobody is always the first
			s, err := w.measure(ctx, o, p, of(p))
			if err != nil {
				// Such as falling behind a rate for a moment: a round that does not count, unless
				// most do not.
				if missed[p]++; ctx.Err() != nil || 2*missed[p] > o.rounds {
					return fmt.Errorf("measuring %s: %w", p.name, err)
				}
				fmt.Fprintf(os.Stderr, "bench: %s: round %d of %s does not count: %v\n", name, round+1, p.name, err)
			}
			r.add(name, p.name, round, s)
		}
	}
	if o.profile && w.peer(fairlead) != nil {
		return w.profile(ctx, o, w.peer(fairlead), name, of(w.peer(fairlead)))
	}
	return nil
}

// want returns peers, starting those that do not run yet.
func (w *world) want(ctx context.Context, names []string) ([]*peer, error) {
	var list []*peer
	for _, name := range names {
		if w.peer(name) == nil {
			if err := w.start(ctx, name); err != nil {
				return nil, err
			}
		}
		list = append(list, w.peer(name))
	}
	return list, nil
}

func (w *world) config(p *peer, s shape) load.Config {
	return load.Config{Address: p.address, TLS: p.tls, Connections: s.conns, Streams: s.streams, Rate: s.rate, Size: s.size, HTTP1: s.http1, Next: s.next, Visit: s.visit}
}

// measure puts one peer under load and takes what the load cost between two moments.
func (w *world) measure(ctx context.Context, o *options, p *peer, s shape) (sample, error) {
	l, err := load.Start(ctx, w.config(p, s))
	if err != nil {
		return sample{}, err
	}
	m, err := w.window(ctx, o, p, l)
	if err := errors.Join(err, l.Close()); err != nil {
		return sample{}, err
	}
	return m, nil
}

func (w *world) window(ctx context.Context, o *options, p *peer, l *load.Load) (sample, error) {
	if err := pause(ctx, o.warm); err != nil {
		return sample{}, err
	}
	var before, after gauge
	if err := errors.Join(w.allocated(ctx, p, &before), w.used(p, l, &before)); err != nil {
		return sample{}, err
	}
	l.Time(true)
	if err := pause(ctx, o.duration); err != nil {
		return sample{}, err
	}
	took := l.Time(false)
	// Processor time first: with 10,000 APIServices the question after allocations takes longer
	// than a measurement.
	if err := errors.Join(w.used(p, l, &after), w.allocated(ctx, p, &after)); err != nil {
		return sample{}, err
	}
	return newSample(before, after, took)
}

// gauge reads what a sample is the difference of.
type gauge struct {
	load.Snapshot

	cpu           time.Duration
	mallocs, cost float64
}

// used reads processor time and what was done for it.
func (w *world) used(p *peer, l *load.Load, g *gauge) (err error) {
	if p.part != nil {
		g.cpu, err = cpuOf(p.part.PID())
	}
	g.Snapshot = l.Snapshot()
	return err
}

// allocated reads allocations, where they are known.
func (w *world) allocated(ctx context.Context, p *peer, g *gauge) (err error) {
	if p.front != nil {
		g.mallocs, g.cost, err = w.mallocs(ctx, p)
	}
	return err
}

// profile loads a Fairlead once more and keeps a CPU profile.
func (w *world) profile(ctx context.Context, o *options, p *peer, name string, s shape) error {
	l, err := load.Start(ctx, w.config(p, s))
	if err != nil {
		return err
	}
	err = w.keep(ctx, o, p, "/debug/pprof/profile?seconds=5", name)
	return errors.Join(err, l.Close())
}

// keep saves one of Fairlead's own profiles.
func (w *world) keep(ctx context.Context, o *options, p *peer, page, name string) error {
	profile, err := w.admin(ctx, p, page)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o750); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, name+".pprof"), profile, 0o600)
}

// pause lets a load run.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
