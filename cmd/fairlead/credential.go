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
	own    string            // the header's value that get has found
	pair   *tls.Certificate  // that get has found
	got    chan error        // the result of a running get, one slot. Nil: none runs. look's
}

func newCredential(ctx context.Context, c *rest.Config, log *slog.Logger) (*credential, error) {
	k := &credential{log: log, rejected: make(chan struct{}, 1), pair: certs.NewPair()}
	if err := k.take(c); err != nil {
		return nil, cli.Usage(err)
	}
	defer time.AfterFunc(patience, func() { log.Warn("still waiting for our own credential", "err", errSilent) }).Stop()
	err := k.look(ctx, k.offered.Load(), false, nil)
	if ctx.Err() == nil {
		err = cli.Usage(err)
	}
	return k, err
}

const patience = 10 * time.Second // client-go waits for a plugin forever

var errSilent = errors.New("the kubeconfig's plugin does not answer")

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

// look obtains a source's credential and puts both in force, unless it is late. Only newCredential and Run call it.
func (k *credential) look(ctx context.Context, s *source, anew bool, late <-chan time.Time) error {
	if s.got == nil { // one goroutine for each source, that ends with its plugin, or with the process
		got := make(chan error, 1)
		s.got = got
		go func() { got <- s.get(anew) }()
	}
	select {
	case err := <-s.got:
		if s.got = nil; err != nil {
			return err
		}
	case <-late:
		return errSilent
	case <-ctx.Done():
		return fmt.Errorf("waiting for our own credential: %w", ctx.Err())
	}
	if s.own == "" && len(s.pair.Certificate) == 0 {
		return errors.New("reading kubeconfig: it has no credential to impersonate callers with")
	}
	k.source.Store(s)
	k.offered.CompareAndSwap(s, nil)
	k.authorization.Store(new(s.own))
	was, _ := k.pair.GetClientCertificate(nil)
	if !slices.EqualFunc(was.Certificate, s.pair.Certificate, slices.Equal[[]byte]) {
		k.pair.Set(s.pair)
	}
	return nil
}

// get asks client-go, which reads files and runs a plugin again (anew) if it is told of a 401.
func (s *source) get(anew bool) (err error) {
	if anew {
		refused, err1 := newSource(s.config, http.StatusUnauthorized)
		fresh, err2 := newSource(s.config, http.StatusOK)
		if err = errors.Join(err1, err2); err != nil {
			return err
		}
		if _, err = refused.authorization(); err != nil {
			return err
		}
		s.ask, s.tls = fresh.ask, fresh.tls
	}
	if s.own, err = s.authorization(); err != nil {
		return err
	}
	s.pair = &tls.Certificate{}
	if get := s.tls.GetClientCertificate; get != nil {
		if s.pair, err = get(&tls.CertificateRequestInfo{}); err != nil {
			return fmt.Errorf("getting our own certificate: %w", err)
		}
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

// Run keeps the credential current until ctx ends.
func (k *credential) Run(ctx context.Context) error {
	// lookEvery bounds how late a plugin is asked after its token expired: client-go asks with the
	// next request. A look costs microseconds; client-go itself rereads a token file once a minute.
	const lookEvery = time.Second
	const renewEvery = 10 * time.Second // if a credential is rejected: plugins call rate-limited APIs
	renewed, failed := time.Time{}, false
	for latest.Sleep(ctx, lookEvery) {
		if failed && time.Since(renewed) < renewEvery {
			continue
		}
		s, anew := cmp.Or(k.offered.Load(), k.source.Load()), false
		if time.Since(renewed) >= renewEvery {
			select {
			case <-k.rejected:
				k.log.Warn("the local apiserver rejects our own credential: getting a new one")
				renewed, anew = time.Now(), true
			default:
			}
		}
		err := k.look(ctx, s, anew, time.After(patience))
		if failed = err != nil && ctx.Err() == nil; failed {
			renewed = time.Now()
			k.log.Error("cannot get our own credential: keeping the last one", "err", err)
			if last := k.source.Load(); s != last { // its token may expire, or be refused, while what is offered fails
				_ = k.look(ctx, last, anew, time.After(patience))
			}
		}
	}
	return ctx.Err()
}

// Authorization returns the Authorization header's value. It does no I/O.
func (k *credential) Authorization() string { return *k.authorization.Load() }

func (k *credential) renew() { latest.Wake(k.rejected) }
