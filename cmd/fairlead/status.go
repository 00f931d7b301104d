package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
)

// makeStatus makes the writer of fairlead.dev/Available, and the reporter of changed verdicts as
// Events. kube-apiserver's own controllers own Available and cannot be switched off.
func (d *door) makeStatus(context.Context) error {
	if d.o.registry.etcd != nil {
		// Available of APIServices in etcd: no other controller writes it.
		objects, err := apiregistrationv1.NewForConfig(d.ownClient())
		if err != nil {
			return fmt.Errorf("making client of APIServices: %w", err)
		}
		if err := d.writeStatus(status.Config{APIServices: objects.APIServices(), Elect: d.apiServices.Elect}); err != nil {
			return err
		}
	}
	if !d.o.writeStatus && !d.o.emitEvents {
		return nil
	}
	objects, err1 := apiregistrationv1.NewForConfig(d.client)
	events, err2 := corev1.NewForConfig(d.client)
	leases, err3 := coordinationv1.NewForConfig(d.client)
	identity, err4 := replicaName()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("making clients of the local apiserver: %w", err)
	}
	if d.o.writeStatus {
		err := d.writeStatus(status.Config{APIServices: objects.APIServices(), Leases: leases, Identity: identity})
		if err != nil {
			return err
		}
	}
	if !d.o.emitEvents {
		return nil
	}
	e, err := status.NewEvents(status.EventsConfig{
		Table: d.registry.Table, Events: events, Leases: leases, Identity: identity, Faults: d.trust.Faults,
		Logger: d.log, Metrics: d.metrics,
	})
	d.loop("events", e.Run)
	return err
}

func (d *door) writeStatus(c status.Config) error {
	c.Table, c.Logger, c.Metrics = d.registry.Table, d.log, d.metrics
	w, err := status.New(c)
	d.loop("status writer", w.Run)
	return err
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
