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

// makeStatus makes the writer of fairlead.dev/Available, and what reports changed verdicts as Events. Available itself belongs to kube-apiserver's own controllers, which
// cannot be switched off.
func (d *door) makeStatus(context.Context) error {
	if !d.o.writeStatus && !d.o.emitEvents {
		return nil
	}
	objects, err1 := apiregistrationv1.NewForConfig(d.client)
	events, err2 := corev1.NewForConfig(d.client)
	leases, err3 := coordinationv1.NewForConfig(d.client)
	identity, err4 := replicaName()
	err := errors.Join(err1, err2, err3, err4)
	if err != nil {
		return fmt.Errorf("making clients of the local apiserver: %w", err)
	}
	if d.o.writeStatus {
		d.status, err = status.New(status.Config{
			Table: d.registry.Table, APIServices: objects.APIServices(), Leases: leases, Logger: d.log, Metrics: d.metrics, Identity: identity,
		})
	}
	if err == nil && d.o.emitEvents {
		d.events, err = status.NewEvents(status.EventsConfig{
			Table: d.registry.Table, Events: events, Leases: leases, Identity: identity, Faults: d.trust.Faults, Logger: d.log, Metrics: d.metrics,
		})
	}
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
