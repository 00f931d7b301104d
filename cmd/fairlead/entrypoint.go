package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
)

// advertised returns the address at which clients in the cluster reach this replica.
func (o *options) advertised() (netip.Addr, error) {
	text := cmp.Or(o.advertiseAddress, os.Getenv("POD_IP"), o.bindAddress)
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, fmt.Errorf("--advertise-address: %w", err)
	}
	if err := entrypoint.CheckAddress(a); err != nil {
		return a, fmt.Errorf("--advertise-address: %w: --publish-kubernetes-endpoints needs one, or the environment variable POD_IP", err)
	}
	return a, nil
}

func (o *options) validateEntrypoint(fault func(string, ...any)) {
	if !o.publishEndpoints {
		return
	}
	if o.alone() {
		fault("--publish-kubernetes-endpoints needs a local apiserver")
		return
	}
	if o.kubeconfig == "" && len(o.localAPIServer) == 0 {
		// The pod's own configuration names the Service, which from now on leads to Fairlead.
		fault("--publish-kubernetes-endpoints needs --local-apiserver, or --kubeconfig: in a pod, the Service kubernetes would lead Fairlead to itself")
	}
	if _, err := o.advertised(); err != nil {
		fault("%w", err)
	}
}

// makeEntrypoint makes the publisher of this replica. It calls Ready only once everything runs.
func (d *door) makeEntrypoint(context.Context) error {
	if !d.o.publishEndpoints {
		return nil
	}
	address, err := d.o.advertised()
	if err != nil {
		return cli.Usage(err)
	}
	c := rest.CopyConfig(d.client)
	c.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, but old clients read them
	core, err1 := corev1.NewForConfig(c)
	slices, err2 := discoveryv1.NewForConfig(c)
	leases, err3 := coordinationv1.NewForConfig(c)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("making clients of the local apiserver: %w", err)
	}
	d.entry, err = entrypoint.New(entrypoint.Config{
		Endpoints: core, Slices: slices, Leases: leases, Logger: d.log, Metrics: d.metrics, Identity: rand.Text(),
		Address: netip.AddrPortFrom(address, d.frontListener.Addr().(*net.TCPAddr).AddrPort().Port()),
		Ready:   func() error { return d.ready.Err(&http.Request{}) },
	})
	d.loop("entrypoint", d.entry.Run)
	return err
}

// leave makes every client look elsewhere: load balancers by the failing readiness, clients in the
// cluster by the endpoints, HTTP/1.1 clients by closing their connections.
func (d *door) leave() {
	d.draining.Start()
	d.tellSystemd(daemon.SdNotifyStopping)
	d.proxy.Leave()
	if d.entry != nil {
		d.entry.Withdraw()
	}
}
