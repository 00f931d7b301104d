package main

import (
	"context"
	"fmt"
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// egressDialer returns the dialer of an egress selector configuration's entry "cluster", as
// kube-apiserver reads it. Live traffic and probes must use the same one. Nil means direct
// connections: there is no file, or it says so.
func egressDialer(file string) (utilnet.DialFunc, error) {
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
	for _, s := range config.EgressSelections {
		// Validation accepts this, but the library takes it for TLS and panics.
		if t := s.Connection.Transport; t != nil && t.TCP != nil && t.TCP.TLSConfig == nil {
			return nil, fmt.Errorf("--egress-selector-config-file: %s: a proxy over TCP needs an https URL and a tlsConfig", s.Name)
		}
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	if err != nil {
		return nil, fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if dial == nil {
		return nil, nil
	}
	return prompt(dial), nil
}

// prompt makes a dialer return when its context ends: the gRPC dialer continues for up to 30 s, but
// probes and requests must not.
func prompt(dial utilnet.DialFunc) utilnet.DialFunc {
	type result struct {
		conn net.Conn
		err  error
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		done := make(chan result, 1) // room for a late result
		go func() {                  // ends with the dial's own timeout at the latest
			conn, err := dial(ctx, network, address)
			done <- result{conn, err}
		}()
		select {
		case r := <-done:
			return r.conn, r.err
		case <-ctx.Done():
			go func() { // ends with the dial, too
				if r := <-done; r.err == nil {
					_ = r.conn.Close()
				}
			}()
			return nil, ctx.Err()
		}
	}
}
