package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
)

// nameserver is a connection to one that may be dead. Go's resolver would wait 5 s, longer than a dial or probe may
// take, and start again with it for each lookup. One that answers later has the answer when it is asked again.
type nameserver struct{ *net.UDPConn }

func (c nameserver) SetDeadline(time.Time) error {
	return c.UDPConn.SetDeadline(time.Now().Add(time.Second))
}

func dialNameserver(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if udp, ok := c.(*net.UDPConn); ok {
		c = nameserver{udp}
	}
	return c, err
}

// egressDialer returns the dialer of an egress selector configuration's entry "cluster", as kube-apiserver reads it.
// Live traffic and probes must use the same one. Nil means direct connections: there is no file, or it says so.
func (p *process) egressDialer(file string) (utilnet.DialFunc, error) {
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil || config == nil { // nil means that there is no file
		return nil, err
	}
	if faults := egressselector.ValidateEgressSelectorConfiguration(config); len(faults) > 0 {
		return nil, faults.ToAggregate()
	}
	for _, s := range config.EgressSelections {
		if t := s.Connection.Transport; t != nil && t.TCP != nil && t.TCP.TLSConfig == nil { // valid, but panics later
			return nil, fmt.Errorf("%s: a proxy over TCP needs an https URL and a tlsConfig", s.Name)
		}
		if strings.EqualFold(s.Name, "cluster") && s.Connection.ProxyProtocol == apiserver.ProtocolHTTPConnect {
			return p.connectDialer(s.Connection.Transport)
		}
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil || selector == nil { // nil means that the file lists nothing
		return nil, err
	}
	return selector.Lookup(egressselector.Cluster.AsNetworkContext())
}

// connectDialer dials through a proxy by HTTP CONNECT. The library's dialer waits for the answer for ever: while an
// agent hangs, every dial would leave a connection (kubernetes-sigs/apiserver-network-proxy#855).
func (p *process) connectDialer(t *apiserver.Transport) (utilnet.DialFunc, error) {
	network, at, dial := "unix", "", new(net.Dialer).DialContext
	if t.UDS != nil {
		at = t.UDS.UDSName
	} else {
		c := t.TCP.TLSConfig
		config, err1 := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
			CAFile: c.CABundle, CertFile: c.ClientCert, KeyFile: c.ClientKey, ServerName: c.TLSServerName,
		}})
		proxy, err2 := url.Parse(t.TCP.URL)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		own := certs.File{Use: "egress-client", Path: c.ClientCert, Key: c.ClientKey, Pair: certs.NewPair()}
		p.files, config.GetClientCertificate = append(p.files, own), own.Pair.GetClientCertificate // the last good
		network, at, dial = "tcp", proxy.Host, (&tls.Dialer{Config: config}).DialContext
	}
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		c, err := dial(ctx, network, at)
		if err != nil {
			return nil, fmt.Errorf("the egress proxy: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		_, _ = fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", address) // if it fails, nothing is read
		from := bufio.NewReader(io.LimitReader(c, http.DefaultMaxHeaderBytes))
		r, err := http.ReadResponse(from, nil) //nolint:bodyclose // the connection ends
		if err == nil && (r.StatusCode != http.StatusOK || from.Buffered() > 0) {
			err = fmt.Errorf("it answers %s", r.Status)
		}
		if !stop() || err != nil {
			_ = c.Close()
			return nil, cmp.Or(ctx.Err(), fmt.Errorf("the egress proxy: %w", err))
		}
		return c, nil
	}, nil
}
