package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

// paced compares latencies at the same rate: 60 % of what the slower of Fairlead and HAProxy can
// do, as scenario get-8x8 found it.
func paced() scenario {
	const name = "paced-8x8"
	return scenario{name: name, about: "GET 1 KB at 60 % of the lower saturation, 8 connections", run: func(ctx context.Context, w *world, o *options, r *results) error {
		saturation := func(peer string) (float64, error) {
			if s := r.of("get-8x8", peer); len(s.Samples) > 0 {
				return s.spread(func(s sample) float64 { return s.Rate }).middle, nil
			}
			list, err := w.want(ctx, []string{peer})
			if err != nil {
				return 0, err
			}
			s, err := w.measure(ctx, o, list[0], gets(8, 8))
			return s.Rate, err
		}
		a, errA := saturation(fairlead)
		b, errB := saturation(haproxy)
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
		s := gets(8, maxStreams)
		s.rate = 0.6 * min(a, b)
		return w.rounds(ctx, o, r, name, []string{fairlead, haproxy}, func(*peer) shape { return s })
	}}
}

// alone is one request at a time with nothing else under way: what a proxy adds to its latency.
func alone() scenario {
	s := gets(1, maxStreams) // they seldom meet
	s.rate = 100
	return loads(single, "GET 1 KB on one connection, 100 a second: one at a time", false, []string{fairlead, haproxy, nghttpx, direct}, s)
}

// local compares what is delegated to kube-apiserver with what goes to an extension server, at a
// rate that kube-apiserver can stand.
func local() scenario {
	const name, rate = "local", 1000
	return scenario{name: name, about: "GET 1 KB at 1,000/s, remote and delegated", run: func(ctx context.Context, w *world, o *options, r *results) error {
		list, err := w.want(ctx, []string{fairlead})
		if err != nil {
			return err
		}
		remote := gets(8, maxStreams)
		remote.rate = rate
		delegated := remote
		delegated.size, delegated.next = 0, always(localPath)
		for round := range o.rounds {
			for _, x := range []struct {
				name string
				s    shape
			}{{"delegated", delegated}, {"remote", remote}} {
				m, err := w.measure(ctx, o, list[0], x.s)
				if err != nil {
					return err
				}
				r.add(name, x.name, round, m)
			}
		}
		return nil
	}}
}

// bodies is how cost grows with a body.
func bodies() scenario {
	const name = "body"
	return scenario{name: name, about: "GET 1 KB … 1 MB, 4 × 4", run: func(ctx context.Context, w *world, o *options, r *results) error {
		for _, size := range []int{objectSize, 16 << 10, listSize, 1 << 20} {
			s := shape{conns: 4, streams: 4, size: size, next: always(fmt.Sprintf("%s/size-%d", resources, size))}
			if err := w.rounds(ctx, o, r, fmt.Sprintf("%s-%dk", name, size>>10), []string{fairlead, reverse, haproxy}, func(*peer) shape { return s }); err != nil {
				return err
			}
		}
		return nil
	}}
}

// users is how cost grows with the number of tokens in use. All are known before it is measured:
// what a miss costs is kube-apiserver's matter.
func users(o *options) scenario {
	const name = "users"
	return scenario{name: name, about: fmt.Sprintf("GET 1 KB, 8 × 8, 1 … %d tokens", o.tokens), run: func(ctx context.Context, w *world, o *options, r *results) error {
		p, err := w.another(ctx, "fairlead-users", hits()...)
		if err != nil {
			return err
		}
		defer p.part.Kill()
		for n := 1; n <= o.tokens; n *= 10 {
			if err := w.introduce(ctx, p, n); err != nil {
				return fmt.Errorf("introducing %d users: %w", n, err)
			}
			s := gets(8, 8)
			s.next = byUser(8, n)
			for round := range o.rounds {
				m, err := w.measure(ctx, o, p, s)
				if err != nil {
					return err
				}
				r.add(name, fmt.Sprintf("%d", n), round, m)
			}
		}
		return nil
	}}
}

// hits has what was asked once be known until the end.
func hits() []string {
	return []string{"--authentication-token-webhook-cache-ttl=1h", "--authorization-webhook-cache-authorized-ttl=1h"}
}

// byUser goes around n users, each connection through all of them, from different places.
func byUser(conns, n int) func(conn, i int) load.Request {
	all := make([]string, n)
	for i := range all {
		all[i] = token(i)
	}
	return func(conn, i int) load.Request {
		return load.Request{Path: resources + "/one", Token: all[(conn*n/conns+i)%n]}
	}
}

// introduce has every user ask once.
func (w *world) introduce(ctx context.Context, p *peer, n int) error {
	s := gets(1, 16)
	s.next = byUser(1, n)
	l, err := load.Start(ctx, w.config(p, s))
	if err != nil {
		return err
	}
	return errors.Join(l.WaitDone(ctx, int64(n+s.streams)), l.Close())
}

// another starts a Fairlead with arguments of its own, which are part of no other scenario.
func (w *world) another(ctx context.Context, name string, args ...string) (*peer, error) {
	p := &peer{name: name, tls: w.tls}
	return p, w.startFairlead(ctx, p, args...)
}

// fresh restarts a peer: one that has been under load has its memory already, and connections whose
// windows have grown.
func (w *world) fresh(ctx context.Context, p *peer) error {
	if p.part == nil {
		return nil
	}
	if err := p.part.Restart(ctx); err != nil || p.front == nil {
		return err
	}
	return w.WaitAvailable(ctx, p.front.Endpoint, group+"/v1")
}

// event makes the backend send one event on every watch.
func (w *world) event(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: w.tls.Clone(), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.backend+eventPath, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// watches is what idle watches keep resident, and what an event costs.
func watches(o *options) scenario {
	const name, each = "watches", 1000 // each: of a connection at most, below maxStreams
	conns := max(20, o.watches/each)
	return scenario{name: name, about: fmt.Sprintf("%d idle watches on %d connections, then events on all", o.watches, conns), quick: true,
		run: func(ctx context.Context, w *world, o *options, r *results) error {
			peers := []string{fairlead, reverse, haproxy}
			if o.peers != "" {
				peers = strings.Split(o.peers, ",")
			}
			list, err := w.want(ctx, peers)
			if err != nil {
				return err
			}
			for round := range o.rounds {
				for _, p := range list {
					began := time.Now()
					if err := w.fresh(ctx, p); err != nil {
						return err
					}
					ready := time.Since(began).Seconds()
					s, err := w.watch(ctx, o, p, conns)
					if err != nil {
						return fmt.Errorf("measuring %s: %w", p.name, err)
					}
					if p.front != nil {
						s.Available = ready
					}
					r.add(name, p.name, round, s)
				}
			}
			return nil
		}}
}

// watch opens watches on connections that have carried one request each, so that TLS handshakes are
// not part of it.
func (w *world) watch(ctx context.Context, o *options, p *peer, conns int) (s sample, err error) {
	n := o.watches
	warm := gets(conns, 1)
	c := w.config(p, warm)
	c.Streams, c.Watch, c.Size = n/conns, true, 0
	c.Next = func(_, i int) load.Request { return load.Request{Path: resources + "?watch=true", Token: token(0)} }
	c.First = &load.Request{Path: resources + "/one", Token: token(0)}
	l, err := load.Start(ctx, c)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	const settle = 25 * time.Second // idle: the last garbage was collected, and buffers and memory were given back
	if err := pause(ctx, settle); err != nil {
		return s, err
	}
	before, err := residentOf(p.part.PID(), own)
	if err != nil {
		return s, err
	}
	l.Go()
	if err := l.WaitDone(ctx, int64(n)); err != nil {
		return s, err
	}
	if err := w.event(ctx); err != nil {
		return s, err
	}
	if err := l.WaitDone(ctx, int64(2*n)); err != nil {
		return s, err
	}
	if err := pause(ctx, settle); err != nil {
		return s, err
	}
	after, err := residentOf(p.part.PID(), own)
	if err != nil {
		return s, err
	}
	s.Watch = float64(after-before) / 1024 / float64(n)
	if err := hold(ctx, o.hold, p); err != nil {
		return s, err
	}
	if o.profile && p.front != nil {
		if err := w.keep(ctx, o, p, "/debug/pprof/heap?gc=1", "watches.heap"); err != nil {
			return s, err
		}
	}
	const events = 10
	cpu, err := cpuOf(p.part.PID())
	if err != nil {
		return s, err
	}
	var last []float64
	for i := range events {
		began := time.Now()
		if err := w.event(ctx); err != nil {
			return s, err
		}
		if err := l.WaitDone(ctx, int64((3+i)*n)); err != nil {
			return s, err
		}
		last = append(last, millis(time.Since(began)))
	}
	used, err := cpuOf(p.part.PID())
	s.CPU = float64((used - cpu).Microseconds()) / float64(events*n)
	s.Last = newSpread(last).middle
	return s, err
}

// hold looks at what a peer keeps resident while nothing happens.
func hold(ctx context.Context, d time.Duration, p *peer) error {
	const every = 30 * time.Second
	for held := time.Duration(0); held < d; held += every {
		now, err := residentOf(p.part.PID(), all)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "bench: %s after %v: %d MB resident\n", p.name, held, now>>20)
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
	return nil
}
