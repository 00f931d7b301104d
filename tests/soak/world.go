package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/soak/check"
)

// namespace holds everything that a soak makes.
const namespace = "soak"

// nodeAddress is what the kube-apiservers say theirs is: they refuse to advertise loopback.
const nodeAddress = "10.79.0.1"

// world is all that there is: a control plane, groups with their backends, two doors before them,
// and who comes through.
type world struct {
	*cluster.Cluster

	o       options
	checker *check.Checker
	history *check.History
	journal *check.Journal
	fronts  *x509.CertPool // vouches for front proxies
	kube    []clients      // of each kube-apiserver
	groups  []*group
	doors   [2]*door
	callers []*caller

	mu sync.Mutex // guards what the tormentors change: the fields of groups and sites that say so
}

// raise starts everything. The caller closes the world, also when it is incomplete.
func raise(ctx context.Context, o options, dir string, journal *check.Journal) (*world, error) {
	w := &world{o: o, journal: journal, history: &check.History{}}
	w.checker = check.New(check.Config{History: w.history, Journal: journal})
	go w.checker.KeepTime(ctx)
	var err error
	w.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: dir, APIServers: 2, APIServerArgs: []string{"--advertise-address=" + nodeAddress}})
	if err != nil {
		return w, err
	}
	if w.fronts, err = certutil.NewPool(w.PKI.FrontProxy.CertFile); err != nil {
		return w, err
	}
	for _, step := range []func(context.Context) error{w.connect, w.grant, w.raiseGroups, w.raiseDoors, w.raiseCallers} {
		if err := step(ctx); err != nil {
			return w, err
		}
	}
	w.await(ctx, "everything, at the start", w.wrong)
	if v := w.checker.Violations(); len(v) > 0 {
		return w, fmt.Errorf("waiting for everything: %s", v[0].What)
	}
	return w, nil
}

func (w *world) raiseGroups(ctx context.Context) error {
	for i, name := range []string{"alpha", "beta", "gamma"} {
		g, err := w.raiseGroup(ctx, i, name)
		if err != nil {
			return fmt.Errorf("registering %s: %w", name, err)
		}
		w.groups = append(w.groups, g)
	}
	return nil
}

func (w *world) close() error {
	for _, d := range w.doors {
		if d != nil {
			d.forget()
		}
	}
	var err error
	if w.Cluster != nil {
		err = w.Close()
	}
	for _, g := range w.groups {
		for _, s := range g.sites() {
			s.server.Close()
		}
	}
	return err
}
