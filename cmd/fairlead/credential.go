package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// credential is what this process impersonates callers with: the token or certificate of its kubeconfig or pod.
// client-go gets it from files and plugins. It is cached here: no request waits for either.
type credential struct {
	log             *slog.Logger
	source, offered atomic.Pointer[source] // how client-go obtains it. offered, if not nil, replaces source once used
	authorization   atomic.Pointer[string] // the header's value, empty if a certificate is used. Never nil
	rejected        chan struct{}          // one slot: the local apiserver answered 401
	pair            *certs.Pair            // the client certificate; look sets it. Empty: a token
}

type source struct {
	config *rest.Config
	ask    http.RoundTripper // returns what client-go's wrappers make of a request. It never sends it
	tls    *tls.Config       // has the client certificate of a pair, a file or a plugin
}

func newCredential(ctx context.Context, c *rest.Config, log *slog.Logger) (*credential, error) {
	k := &credential{log: log, rejected: make(chan struct{}, 1), pair: certs.NewPair()}
	if err := k.take(c); err != nil {
		return nil, cli.Usage(err)
	}
	looked := make(chan error, 1)
	go func() { looked <- k.look(k.offered.Load()) }() // ends with the plugin, or with the process
	select {
	case err := <-looked:
		return k, cli.Usage(err)
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for our own credential: %w", ctx.Err())
	}
}

// take offers Run another configuration. It runs no plugin, which may hang: its caller also follows other files.
func (k *credential) take(c *rest.Config) error {
	if as := &c.Impersonate; as.UserName != "" || as.UID != "" || len(as.Groups)+len(as.Extra) > 0 {
		return errors.New("reading kubeconfig: it already impersonates a user (as:): " +
			"kube-apiserver accepts only one impersonated identity, the caller's")
	}
	c = rest.CopyConfig(c)
	c.Dial, c.WrapTransport = nil, nil // they dial servers
	if c.BearerTokenFile != "" {
		c.BearerToken = "" // what the file contained at the start is outdated
	}
	s, err := newSource(c, http.StatusOK)
	if err != nil {
		return err
	}
	k.offered.Store(s)
	return nil
}

// newSource makes a source whose fake server answers every request with status and the request's own header.
func newSource(c *rest.Config, status int) (*source, error) {
	ask, err1 := rest.HTTPWrappersForConfig(c, promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: r.Header, Body: http.NoBody, Request: r}, nil
	}))
	tc, err2 := rest.TLSConfigFor(c)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	return &source{config: c, ask: ask, tls: cmp.Or(tc, &tls.Config{})}, nil
}

// look obtains a source's credential and puts both in force. Only newCredential and Run call it.
func (k *credential) look(s *source) error {
	const slow = 10 * time.Second // client-go waits for a plugin forever
	defer time.AfterFunc(slow, func() {
		k.log.Warn("still waiting for our own credential: the kubeconfig's plugin does not answer")
	}).Stop()
	own, err := s.authorization()
	if err != nil {
		return err
	}
	pair := &tls.Certificate{}
	if get := s.tls.GetClientCertificate; get != nil {
		if pair, err = get(&tls.CertificateRequestInfo{}); err != nil {
			return fmt.Errorf("getting our own certificate: %w", err)
		}
	}
	if own == "" && len(pair.Certificate) == 0 {
		return errors.New("reading kubeconfig: it has no credential to impersonate callers with")
	}
	k.source.Store(s)
	k.offered.CompareAndSwap(s, nil)
	k.authorization.Store(&own)
	was, _ := k.pair.GetClientCertificate(nil)
	if !slices.EqualFunc(was.Certificate, pair.Certificate, slices.Equal[[]byte]) {
		k.pair.Set(pair)
	}
	return nil
}

func (s *source) authorization() (string, error) {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "localhost"}}
	res, err := s.ask.RoundTrip(r) //nolint:bodyclose // http.NoBody
	if err != nil {
		return "", fmt.Errorf("getting our own credential: %w", err)
	}
	return res.Header.Get("Authorization"), nil
}

// again makes a source that reads files and runs a plugin again, by reporting a 401 to client-go.
func (s *source) again() (*source, error) {
	refused, err := newSource(s.config, http.StatusUnauthorized)
	if err != nil {
		return nil, err
	}
	if _, err := refused.authorization(); err != nil {
		return nil, err
	}
	return newSource(s.config, http.StatusOK)
}

// Run keeps the credential current until ctx ends.
func (k *credential) Run(ctx context.Context) error {
	// lookEvery bounds how late a plugin is asked after its token expired: client-go asks with the
	// next request. A look costs microseconds; client-go itself rereads a token file once a minute.
	const lookEvery = time.Second
	const renewEvery = 10 * time.Second // if a credential is rejected: plugins call rate-limited APIs
	tick, renewed, failed := time.Tick(lookEvery), time.Time{}, false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
		}
		if failed && time.Since(renewed) < renewEvery {
			continue
		}
		s, err := cmp.Or(k.offered.Load(), k.source.Load()), error(nil)
		if time.Since(renewed) >= renewEvery {
			select {
			case <-k.rejected:
				k.log.Warn("the local apiserver rejects our own credential: getting a new one")
				renewed = time.Now()
				s, err = s.again()
			default:
			}
		}
		if err == nil {
			err = k.look(s)
		}
		if failed = err != nil; failed {
			renewed = time.Now()
			k.log.Error("cannot get our own credential: keeping the last one", "err", err)
			if last := k.source.Load(); s != last { // what is offered may fail for ever, while the last token expires
				_ = k.look(last)
			}
		}
	}
}

// Authorization returns the Authorization header's value. It does no I/O.
func (k *credential) Authorization() string { return *k.authorization.Load() }

func (k *credential) renew() { latest.Wake(k.rejected) }
