package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/health"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/discovery"
)

// door is everything that serve runs.
type door struct {
	o       *options
	log     *slog.Logger
	metrics *prometheus.Registry
	client  *rest.Config
	servers []string

	frontListener, adminListener net.Listener
	self                         []netip.AddrPort

	registry  *registry.Registry
	certs     *certs.Store
	trust     *trust.Trust
	prober    *health.Prober
	backends  *backend.Pools
	local     *backend.Local
	proxy     *proxy.Proxy
	discovery *discovery.Discovery
	frames    *h2.Server // nil: --h2-lane=nethttp
	target    atomic.Pointer[target]
	draining  health.Draining
	ready     *health.Checks
	access    io.Closer

	front, admin *http.Server
}

// run builds the door top to bottom, serves until ctx ends, and drains.
func run(ctx context.Context, o *options, stderr io.Writer) error {
	d := &door{o: o, log: newLogger(stderr, o.logFormat, o.verbosity), metrics: newMetrics()}
	for _, step := range []func(context.Context) error{
		d.findAPIServer, d.openListeners, d.makeTable, d.makeTrust, d.makeBackends, d.makeDocuments, d.makeProxy, d.makeServers,
	} {
		if err := step(ctx); err != nil {
			d.closeListeners()
			return err
		}
	}
	defer d.access.Close()
	return d.serve(ctx)
}

// serve runs every loop until ctx ends or one of them fails. The loops outlive ctx by the drain.
func (d *door) serve(ctx context.Context) error {
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(loops)
	for name, loop := range d.loops() {
		g.Go(func() error {
			if err := loop(gctx); err != nil && !errors.Is(err, context.Canceled) {
				return fmt.Errorf("running %s: %w", name, err)
			}
			return nil
		})
	}
	g.Go(func() error { return serve(d.front, d.frontListener) })
	g.Go(func() error { return serve(d.admin, d.adminListener) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-gctx.Done():
		}
		d.drainer().drain(d.front, d.admin) //nolint:contextcheck // the drain begins when ctx has ended
		stop()
		return nil
	})
	d.log.Info("serving", "front", d.frontListener.Addr().String(), "admin", d.adminListener.Addr().String(), "version", version)
	return g.Wait()
}

// loops are the components that run beside the servers, by what an operator calls them.
func (d *door) loops() map[string]func(context.Context) error {
	loops := map[string]func(context.Context) error{
		"table": d.registry.Run, "certificates": d.certs.Run, "backend trust": d.trust.Run, "prober": d.prober.Run,
		"backend pools": d.backends.Run, "local apiserver's pools": d.local.Run, "request metrics": d.proxy.Run, "discovery": d.discovery.Run,
	}
	if d.frames != nil {
		loops["frame lane"] = d.frames.Run
	}
	return loops
}

func (d *door) drainer() *drainer {
	dr := &drainer{
		delay: d.o.shutdownDelay, requests: d.o.requestTimeout, watches: d.o.watchGrace, unready: d.draining.Start,
		endWatches: d.proxy.EndLongRunning, endSessions: d.proxy.EndSessions, sessions: d.proxy.Sessions, log: d.log,
	}
	if d.frames != nil {
		dr.frames = d.frames.Shutdown
	}
	return dr
}

func (d *door) openListeners(ctx context.Context) (err error) {
	if d.frontListener, err = listen(ctx, d.o.bindAddress, d.o.securePort); err != nil {
		return err
	}
	if d.adminListener, err = listen(ctx, d.o.bindAddress, d.o.adminPort); err != nil {
		return err
	}
	for _, l := range []net.Listener{d.frontListener, d.adminListener} {
		own, err := ownAddresses(l)
		if err != nil {
			return err
		}
		d.self = append(d.self, own...)
	}
	return d.refuseSelf(ctx)
}

func (d *door) closeListeners() {
	for _, l := range []net.Listener{d.frontListener, d.adminListener} {
		if l != nil {
			_ = l.Close() // the process ends with the error that brought it here
		}
	}
}

// isSelf reports whether an address is one of our own listeners.
func (d *door) isSelf(a netip.AddrPort) bool {
	return slices.Contains(d.self, netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()))
}
