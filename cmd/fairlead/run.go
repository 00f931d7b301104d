package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/proxy/front"
)

// run builds the door top to bottom, serves until ctx ends, and drains.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	d := &door{o: o, log: log, metrics: prometheus.NewRegistry()}
	limitMemory(d.log)
	if m := keepSmall(); m != nil {
		d.loop("memory", m.Run)
	}
	if err := d.build(ctx); err != nil {
		return err
	}
	err := d.serve(ctx)
	return errors.Join(err, d.closeRecords())
}

// build makes all components and listens, but serves nothing yet.
func (d *door) build(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.countProcess, d.findAPIServer, d.openListeners, d.makeReach, d.makeTable, d.makeTrust, d.makeBackends,
		d.makeStatus, d.makeEntrypoint, d.makeDocuments, d.makeProxy, d.makePages, d.makePorts,
	} {
		if err := step(ctx); err != nil {
			d.closeListeners()
			return err
		}
	}
	return nil
}

// serve runs all loops until ctx ends or one of them fails. The loops run until the drain has
// ended.
func (d *door) serve(ctx context.Context) error {
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(loops)
	for name, loop := range d.loops {
		g.Go(func() error {
			if err := loop(gctx); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("running %s: %w", name, err)
			}
			return nil
		})
	}
	g.Go(d.front.Serve)
	g.Go(d.admin.Serve)
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-gctx.Done():
		}
		d.drain() //nolint:contextcheck // the drain begins when ctx has ended
		stop()
		return nil
	})
	d.log.Info("serving", "front", d.frontListener.Addr().String(), "admin", d.adminListener.Addr().String(), "version", version)
	return d.ended(g.Wait, loops.Done())
}

// lastWait is how long loops may take to end after the drain. The slowest orderly one releases a
// Lease at an apiserver that does not answer, which takes 10 s.
const lastWait = 15 * time.Second

// ended returns when all loops have ended, or lastWait after stopped is closed. client-go waits
// forever for a kubeconfig's plugin that hangs, and what was recorded must still be stored.
func (d *door) ended(loops func() error, stopped <-chan struct{}) error {
	result := make(chan error, 1)
	go func() { result <- loops() }() // ends with the loops, or with the process
	select {
	case err := <-result:
		return err
	case <-stopped:
	}
	select {
	case err := <-result:
		return err
	case <-time.After(lastWait):
		d.log.Warn("ending, though some loops have not ended: a plugin of the kubeconfig may hang")
		return nil
	}
}

// loops are background components, by the names that errors show.
type loops map[string]func(context.Context) error

// loop has serve run a component. Steps also call it for one that could not be made: then serve is
// not reached.
func (d *door) loop(name string, run func(context.Context) error) {
	if d.loops == nil {
		d.loops = make(loops)
	}
	d.loops[name] = run
}

// The shares of file descriptors for client connections, and for sessions' connections to backends
// (proxy.Config.MaxSessions); other connections to backends, probes and files use the rest.
const (
	frontShare   = 3. / 4
	adminShare   = 1. / 16
	sessionShare = 1. / 8
)

func (d *door) openListeners(ctx context.Context) (err error) {
	d.frontListener, err = front.Listen(ctx, front.Address{
		Host: d.o.bindAddress, Port: d.o.securePort, Name: "front", MaxConnections: d.o.maxConnections, Share: frontShare, Logger: d.log, Metrics: d.metrics,
	})
	if err != nil {
		return err
	}
	d.adminListener, err = front.Listen(ctx, front.Address{Host: d.o.bindAddress, Port: d.o.adminPort, Name: "admin", Share: adminShare, Logger: d.log, Metrics: d.metrics})
	if err != nil {
		return err
	}
	for _, l := range []*front.Listener{d.frontListener, d.adminListener} {
		own, err := l.Own()
		if err != nil {
			return err
		}
		d.self = append(d.self, own...)
	}
	return d.refuseSelf(ctx)
}

func (d *door) closeListeners() {
	for _, l := range []*front.Listener{d.frontListener, d.adminListener} {
		if l != nil {
			_ = l.Close() // the process ends with the error that brought it here
		}
	}
}
