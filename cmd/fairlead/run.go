package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/proxy/front"
)

// process is what the parts of serve have in common. Most are made by a method of it that takes
// what else they need, and returns the part. serve runs the loops that they add.
type process struct {
	o       *options
	log     *slog.Logger
	metrics *prometheus.Registry
	sinks   metric.Sinks                           // of both
	held    *hold.Bound                            // bytes held by connections
	loops   map[string]func(context.Context) error // in the background, added by makers under names that errors show
	more    []needs.Check                          // checks of what makers make, beside those of makeChecks
	files   []certs.File                           // added by makers, to be followed with our own certificates
	records
	draining atomic.Bool   // the first step of a shutdown: not ready
	news     chan struct{} // one slot: the local apiserver's prober has reported something
	// host is this machine's name, empty if it has none. identity is unique: two replicas may share
	// a host, and a new process must not take over its predecessor's Lease.
	host, identity string
}

func newProcess(o *options, log *slog.Logger) *process {
	limitMemory(log) // first: hold.New(0) is a part of it
	host, _ := os.Hostname()
	metrics := prometheus.NewRegistry()
	return &process{
		o: o, log: log, metrics: metrics, sinks: metric.Sinks{Logger: log, Metrics: metrics}, held: hold.New(0),
		loops: make(map[string]func(context.Context) error), news: make(chan struct{}, 1), host: host,
		identity: host + "_" + rand.Text(),
	}
}

func every(pause time.Duration, f func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		wait.UntilWithContext(ctx, f, pause)
		return ctx.Err()
	}
}

func run(ctx context.Context, o *options, log *slog.Logger) error {
	p := newProcess(o, log)
	if m := keepSmall(); m != nil {
		p.loops["memory"] = every(idleTime, func(context.Context) { m.look(readHeap()) })
	}
	p.loops["memory limit"] = every(time.Minute, func(context.Context) { followLimit() })
	s, err := build(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(s.serve(ctx), p.closeRecords())
}

// serve runs all loops until ctx ends or one of them fails. They run until the drain has ended.
func (s *server) serve(ctx context.Context) error {
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(loops)
	for name, loop := range s.loops {
		g.Go(func() error {
			if err := loop(gctx); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("running %s: %w", name, err)
			}
			return nil
		})
	}
	g.Go(s.front.Serve)
	g.Go(s.admin.Serve)
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-gctx.Done():
			s.log.Error("ending", "err", context.Cause(gctx)) // main tells it after the drain, which may be cut short
		}
		s.drain() //nolint:contextcheck // the drain begins when ctx has ended
		stop()
		return nil
	})
	s.log.Info("serving", "front", s.ports.front.Addr().String(),
		"admin", s.ports.admin.Addr().String(), "version", version)
	return s.ended(gctx, g.Wait, loops.Done())
}

// lastWait is how long loops may take to end after the drain: releasing a Lease takes 6 s if no apiserver answers.
const lastWait = 15 * time.Second

// ended returns when all loops have ended, or lastWait after stopped is closed, then with why ctx has ended, which is
// theirs: client-go waits forever for a kubeconfig's plugin that hangs, and what was recorded must still be stored.
func (p *process) ended(ctx context.Context, loops func() error, stopped <-chan struct{}) error {
	result := make(chan error, 1)
	go func() { result <- loops() }() // ends with the loops, or with the process
	<-stopped
	select {
	case err := <-result:
		return err
	case <-time.After(lastWait):
		p.log.Warn("exiting with loops still running: a plugin of the kubeconfig may hang")
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// The shares of file descriptors for client connections, for sessions' connections to backends
// (proxy.Config.MaxSessions) and for watched ones (health.Config.MaxWatched). Others, probes and files use the rest.
const frontShare, adminShare, sessionShare, watchShare = 3. / 4, 1. / 16, 1. / 8, 1. / 32

type ports struct{ front, admin *front.Listener }

func (p *process) listen(ctx context.Context) (l ports, err error) {
	address := p.o.front
	address.Name, address.Share, address.Sinks = "front", frontShare, p.sinks
	if l.front, err = front.Listen(ctx, address); err != nil {
		return l, err
	}
	address.Name, address.Share = "admin", adminShare
	address.Port, address.MaxConnections = p.o.adminPort, 0
	l.admin, err = front.Listen(ctx, address)
	return l, err
}

func (l ports) close() {
	for _, l := range []*front.Listener{l.front, l.admin} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// reach returns the only dialer of backends, and the rules for the local apiserver, which we chose.
func (s *server) reach(ctx context.Context) (backends, local *reach.Rules, err error) {
	// The operator of this process writes the directory, but not what is in etcd or in a cluster.
	r, from := s.o.TableOptions().Reach, &s.o.registry
	r.AllowLoopback = r.AllowLoopback || from.dir != "" && from.etcd == nil && !from.cluster
	for _, l := range []*front.Listener{s.ports.front, s.ports.admin} {
		own, err := l.Own()
		if err != nil {
			return nil, nil, err
		}
		r.Self = append(r.Self, own...)
	}
	if r.Via, err = s.egressDialer(s.o.egress); err != nil {
		return nil, nil, cli.Usage(fmt.Errorf("--egress-selector-config-file: %w", err))
	}
	local = &reach.Rules{Operator: true, Self: r.Self}
	if s.kube != nil {
		err = s.kube.refuseSelf(ctx, local)
	}
	return &r, local, err
}
