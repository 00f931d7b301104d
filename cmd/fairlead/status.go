package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/fairlead/status"
)

// makeStatus makes the writer of fairlead.dev/Available. Available itself belongs to kube-apiserver's own controllers, which cannot be switched off.
func (d *door) makeStatus(context.Context) error {
	if !d.o.writeStatus {
		return nil
	}
	objects, err := apiregistrationv1.NewForConfig(d.client)
	if err != nil {
		return fmt.Errorf("making client of the local apiserver: %w", err)
	}
	leases, err := coordinationv1.NewForConfig(d.client)
	if err != nil {
		return fmt.Errorf("making client of the local apiserver: %w", err)
	}
	identity, err := replicaName()
	if err != nil {
		return err
	}
	d.status, err = status.New(status.Config{
		Table: d.registry.Table, APIServices: objects.APIServices(), Leases: leases, Logger: d.log, Metrics: d.metrics, Identity: identity,
	})
	return err
}

// replicaName names this process among its replicas: two may share a host, and a new process must not take its predecessor's Lease for its own.
func replicaName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this replica: %w", err)
	}
	return host + "_" + rand.Text(), nil
}

// makeEvents makes what reports changed verdicts as Events.
func (d *door) makeEvents(context.Context) error {
	if !d.o.emitEvents {
		return nil
	}
	events, err := corev1.NewForConfig(d.client)
	if err != nil {
		return fmt.Errorf("making client of the local apiserver: %w", err)
	}
	leases, err := coordinationv1.NewForConfig(d.client)
	if err != nil {
		return fmt.Errorf("making client of the local apiserver: %w", err)
	}
	identity, err := replicaName()
	if err != nil {
		return err
	}
	d.events, err = status.NewEvents(status.EventsConfig{
		Table: d.registry.Table, Events: events, Leases: leases, Identity: identity, Faults: d.trust.Faults, Logger: d.log, Metrics: d.metrics,
	})
	return err
}
