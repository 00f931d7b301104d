package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
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

// shown is what an endpoint presented, and the CAs that it accepts. If err is set, it was not
// reached.
type shown struct {
	chain []*x509.Certificate
	asked *tls.CertificateRequestInfo
	err   error
}

// ask asks the endpoints of all entries at once, because each that does not answer takes
// handshakeTimeout. It never sends the proxy client certificate.
func (l *linter) ask(ctx context.Context, entries []*registry.Entry) map[*registry.Entry][]shown {
	all := make(map[*registry.Entry][]shown)
	rules := l.reach()
	var g errgroup.Group
	g.SetLimit(maxHandshakes)
	for _, e := range entries {
		answers := make([]shown, len(e.Endpoints))
		all[e] = answers
		for i := range e.Endpoints {
			g.Go(func() error {
				address := e.Endpoints[i].Address
				answers[i] = chainOf(ctx, rules.Dial, address, e.Backend.NameAt(address))
				return nil
			})
		}
	}
	_ = g.Wait() // no function returns an error
	return all
}

// presented returns the chain of each endpoint of e. It omits one that could not be reached from
// here, with a warning: Fairlead may run in another network.
func (l *linter) presented(e *registry.Entry, answers []shown) map[string][]*x509.Certificate {
	chains := make(map[string][]*x509.Certificate)
	for i, answer := range answers {
		address := e.Endpoints[i].Address
		if answer.err != nil {
			do := joined("; there, ", "run lint where Fairlead runs", advice.For(answer.err.Error()))
			l.warn("APIService "+e.Name, do, "endpoint %s: asking for its certificate: %v", address, answer.err)
			continue
		}
		chains[address] = answer.chain
		if l.proxy != nil {
			l.trusts("APIService "+e.Name, address, answer.asked)
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

func chainOf(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), address, name string) (got shown) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return shown{err: err}
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		ServerName: name, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // sends nothing; certs.CheckBackend verifies the chain and reports why it fails
		GetClientCertificate: func(i *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			got.asked = i
			return &tls.Certificate{}, nil // send none
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return shown{err: err}
	}
	got.chain = conn.ConnectionState().PeerCertificates
	return got
}
