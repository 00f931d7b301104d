package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/health/status"
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
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("naming this replica: %w", err)
	}
	d.status, err = status.New(status.Config{
		Table: d.registry.Table, APIServices: objects.APIServices(), Leases: leases, Logger: d.log, Metrics: d.metrics,
		Identity: host + "_" + rand.Text(), // two replicas may share a host, and a new process must not take its predecessor's Lease for its own
	})
	return err
}
