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

// publisher keeps this replica among the endpoints of default/kubernetes.
type publisher = entrypoint.Publisher

// advertised is where clients in the cluster reach this replica.
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
		// The pod's own configuration names the Service, which leads to Fairlead from now on.
		fault("--publish-kubernetes-endpoints needs --local-apiserver, or --kubeconfig: in a pod, the Service kubernetes would lead Fairlead to itself")
	}
	if _, err := o.advertised(); err != nil {
		fault("%w", err)
	}
}

// makeEntrypoint makes the publisher of this replica. It asks whether this replica is ready, and so whether the door is complete, only once everything runs.
func (d *door) makeEntrypoint(context.Context) error {
	if !d.o.publishEndpoints {
		return nil
	}
	address, err := d.o.advertised()
	if err != nil {
		return cli.Usage(err)
	}
	c := rest.CopyConfig(d.client)
	c.WarningHandler = rest.NoWarnings{} // that Endpoints are old is known: they are for clients that know nothing newer
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
	return err
}

// leave makes everybody look elsewhere: load balancers by the readiness, clients in the cluster by the endpoints, those that speak HTTP/1.1 by the end of
// their connections.
func (d *door) leave() {
	d.draining.Start()
	d.tellSystemd(daemon.SdNotifyStopping)
	d.proxy.Leave()
	if d.entry != nil {
		d.entry.Withdraw()
	}
}
