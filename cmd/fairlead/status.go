package main

import (
	"cmp"
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
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
)

// makeStatus makes the writer of fairlead.dev/Available, and the reporter of changed verdicts as
// Events. kube-apiserver's own controllers own Available and cannot be switched off.
func (s *server) makeStatus() error {
	c := status.Config{Table: func() status.Table { return s.registry.Table() }, Faults: s.trust.Faults, Logger: s.log, Metrics: s.metrics}
	if s.o.writeStatus || s.o.emitEvents {
		events, err1 := corev1.NewForConfig(s.kube.client)
		leases, err2 := coordinationv1.NewForConfig(s.kube.client)
		identity, err3 := replicaName()
		if err := errors.Join(err1, err2, err3); err != nil {
			return fmt.Errorf("making clients of the local apiserver: %w", err)
		}
		c.Events, c.Leases, c.Identity = events, leases, identity
	}
	if s.o.writeStatus || s.o.registry.etcd != nil {
		var client *rest.Config
		if s.o.writeStatus {
			client = s.kube.client
		} else { // Available of APIServices in etcd: no other controller writes it
			client, c.Elect = ownClient(s.apiServices), s.apiServices.Elect
		}
		objects, err := apiregistrationv1.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("making client of APIServices: %w", err)
		}
		c.APIServices = objects.APIServices()
		s.loops["status writer"] = status.New(c).Run
	}
	if s.o.emitEvents {
		s.loops["events"] = status.NewEvents(c).Run
	}
	return nil
}

// replicaName returns a unique name of this process: two replicas may share a host, and a new
// process must not take over its predecessor's Lease.
func replicaName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this replica: %w", err)
	}
	return host + "_" + rand.Text(), nil
}

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

func (o *options) validateEntrypoint(f *cli.Faults) {
	if !o.publishEndpoints {
		return
	}
	if o.alone() {
		f.Add("--publish-kubernetes-endpoints needs a local apiserver")
		return
	}
	if o.kubeconfig == "" && len(o.localAPIServer) == 0 {
		// The pod's own configuration names the Service, which from now on leads to Fairlead.
		f.Add("--publish-kubernetes-endpoints needs --local-apiserver, or --kubeconfig: in a pod, the Service kubernetes would lead Fairlead to itself")
	}
	_, err := o.advertised()
	f.If(err != nil, "%w", err)
}

// makeEntrypoint makes the publisher of this replica. It calls Ready only once everything runs.
func (s *server) makeEntrypoint() error {
	if !s.o.publishEndpoints {
		return nil
	}
	address, err := s.o.advertised()
	if err != nil {
		return cli.Usage(err)
	}
	c := rest.CopyConfig(s.kube.client)
	c.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, but old clients read them
	core, err1 := corev1.NewForConfig(c)
	slices, err2 := discoveryv1.NewForConfig(c)
	leases, err3 := coordinationv1.NewForConfig(c)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("making clients of the local apiserver: %w", err)
	}
	s.entry, err = entrypoint.New(entrypoint.Config{
		Endpoints: core, Slices: slices, Leases: leases, Logger: s.log, Metrics: s.metrics, Identity: rand.Text(),
		Address: netip.AddrPortFrom(address, s.ports.front.Addr().(*net.TCPAddr).AddrPort().Port()),
		Ready:   func() error { return s.ready.Err(&http.Request{}) },
	})
	s.loops["entrypoint"] = s.entry.Run
	return err
}

// leave makes every client look elsewhere: load balancers by the failing readiness, clients in the
// cluster by the endpoints, HTTP/1.1 clients by closing their connections.
func (s *server) leave() {
	s.draining.Store(true)
	s.tellSystemd(daemon.SdNotifyStopping)
	s.proxy.Leave()
	if s.entry != nil {
		s.entry.Withdraw()
	}
}
