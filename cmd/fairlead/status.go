package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/entrypoint"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

func (s *server) makeStatus() error {
	c := status.Config{
		Table:    func() latest.State[*registry.Entry] { return s.registry.Table() },
		Identity: s.identity, Faults: s.trust.Faults, Sinks: s.sinks,
	}
	if s.kube != nil {
		c.Client = s.kube.api
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
		s.objects = objects.APIServices()
		c.APIServices = s.objects
		s.loops["status writer"] = status.New(c).Run
	}
	e := new(status.Events)
	if s.o.emitEvents {
		e = status.NewEvents(c)
		s.loops["events"] = e.Run
	}
	s.loops["rules"] = every(5*time.Second, func(context.Context) { e.Refusals(s.registry.Table().Rules(), s.log) })
	return nil
}

func (o *options) advertised() (netip.Addr, error) {
	a, err := netip.ParseAddr(cmp.Or(o.advertiseAddress, os.Getenv("POD_IP"), o.front.Host))
	if err = cmp.Or(err, entrypoint.CheckAddress(a)); err != nil {
		return a, fmt.Errorf("--advertise-address: %w: --publish-kubernetes-endpoints needs one, "+
			"or the environment variable POD_IP", err)
	}
	return a, nil
}

func (o *options) addEntrypointFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.critical, "critical-apiservices", nil,
		"APIServices without which this replica is not ready while another replica reaches them, and all that this "+
			"one reaches: the check aggregated-apis. Replicas tell each other by Leases in kube-system. Empty: none.")
	fs.BoolVar(&o.publishEndpoints, "publish-kubernetes-endpoints", false,
		"Add this replica, while it is ready, to the endpoints of the Service default/kubernetes. "+
			"kube-apiserver must run with --endpoint-reconciler-type=none.")
	fs.StringVar(&o.advertiseAddress, "advertise-address", "", "Address at which clients in the cluster reach this "+
		"replica, for --publish-kubernetes-endpoints. Empty: the environment variable POD_IP, or else --bind-address.")
}

func (o *options) validateEntrypoint(f *cli.Faults) {
	if !o.publishEndpoints || o.alone() {
		f.If(o.publishEndpoints, "--publish-kubernetes-endpoints needs a local apiserver")
		return
	}
	// The pod's own configuration names the Service, which from now on leads to Fairlead.
	f.If(o.kubeconfig == "" && len(o.localAPIServer) == 0, "--publish-kubernetes-endpoints needs --local-apiserver, "+
		"or --kubeconfig: in a pod, the Service kubernetes would lead Fairlead to itself")
	_, err := o.advertised()
	f.If(err != nil, "%w", err)
}

// makeEntrypoint makes the publisher of this replica. It calls Ready only once everything runs.
func (s *server) makeEntrypoint() {
	if !s.o.publishEndpoints {
		return
	}
	address, _ := s.o.advertised() // validate has seen that there is one
	published := &needs.Outcome{}
	s.more = append(s.more, lastOf("entrypoint", published, "the Service default/kubernetes does not follow: ",
		"see the checks rights and local-apiserver, and whether an admission webhook denies it"))
	s.entry = entrypoint.New(entrypoint.Config{
		Client: s.kube.api, Sinks: s.sinks, Identity: s.identity, Zone: s.o.zone,
		Address: netip.AddrPortFrom(address, s.ports.front.Addr().(*net.TCPAddr).AddrPort().Port()),
		Ready:   func() error { return s.ready.Err(&http.Request{}) }, Ended: published.Note,
	})
	s.loops["entrypoint"] = s.entry.Run
}
