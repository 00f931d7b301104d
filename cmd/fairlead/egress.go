package main

import (
	"context"
	"fmt"
	"net"

	"k8s.io/apiserver/pkg/server/egressselector"
)

// egressDialer returns how backends are reached by an egress selector configuration, as kube-apiserver reads it: by its entry "cluster". Live traffic and
// probes must take the same way. Nil: directly, because there is no file or it says so.
func egressDialer(file string) (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	if file == "" {
		return nil, nil
	}
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if faults := egressselector.ValidateEgressSelectorConfiguration(config); len(faults) > 0 {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", faults.ToAggregate())
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	return dial, nil
}
