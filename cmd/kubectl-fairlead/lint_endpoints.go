package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// handshakeTimeout bounds one endpoint, as for a probe. maxHandshakes bounds concurrent
	// handshakes.
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 16
)

// presented gets every endpoint's chain and the CAs it accepts, and never sends the proxy client
// certificate. It omits an endpoint that cannot be reached from here, with a warning: Fairlead may
// run in another network.
func (l *linter) presented(ctx context.Context, e *registry.Entry) map[string][]*x509.Certificate {
	var mu sync.Mutex // guards what follows
	chains := make(map[string][]*x509.Certificate)
	faults := make(map[string]error)
	asked := make(map[string]*tls.CertificateRequestInfo)
	rules := l.reach()
	var g errgroup.Group
	g.SetLimit(maxHandshakes)
	for _, endpoint := range e.Endpoints {
		g.Go(func() error {
			chain, request, err := chainOf(ctx, rules.Dial, endpoint.Address, e.Backend.NameAt(endpoint.Address))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults[endpoint.Address] = err
			} else {
				chains[endpoint.Address], asked[endpoint.Address] = chain, request
			}
			return nil
		})
	}
	_ = g.Wait() // no function returns an error
	for _, endpoint := range e.Endpoints {
		if err := faults[endpoint.Address]; err != nil {
			do := joined("; there, ", "run lint where Fairlead runs", advice.For(err.Error()))
			l.warn("APIService "+e.Name, do, "endpoint %s: asking for its certificate: %v", endpoint.Address, err)
		} else if l.proxy != nil {
			l.trusts("APIService "+e.Name, endpoint.Address, asked[endpoint.Address])
		}
	}
	return chains
}

// trusts compares the proxy client certificate with the CAs that an extension server asks for. A
// server that names none may or may not trust it.
func (l *linter) trusts(object, address string, asked *tls.CertificateRequestInfo) {
	issuer := l.proxy.Leaf.Issuer.CommonName
	do := fmt.Sprintf("start it with --requestheader-client-ca-file, which must have %q, and %q in --requestheader-allowed-names", issuer, l.proxy.Leaf.Subject.CommonName)
	if asked == nil {
		l.warn(object, do, "endpoint %s asks for no client certificate, so it accepts no user from a front proxy", address)
	} else if err := asked.SupportsCertificate(l.proxy); err != nil {
		l.error(object, do, "endpoint %s does not trust the CA %q of the proxy client certificate", address, issuer)
	}
}

func chainOf(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), address, name string) (chain []*x509.Certificate, asked *tls.CertificateRequestInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		ServerName: name, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // sends nothing; certs.CheckBackend verifies the chain and reports why it fails
		GetClientCertificate: func(i *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = i
			return &tls.Certificate{}, nil // send none
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return conn.ConnectionState().PeerCertificates, asked, nil
}
