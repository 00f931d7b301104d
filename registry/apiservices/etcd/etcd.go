// Package etcd stores APIServices as kube-apiserver does: with the same keys and encoding, by k8s.io/apiserver's
// storage and watch cache, and with kube-aggregator's strategy. Any number of processes may share them.
//
// A Store may be made and used while etcd is unreachable: it connects when it can, and until then returns errors that
// say "unavailable". Any goroutine may call its methods. The watch cache has its own goroutines, which end with Run.
//
// This package serves nothing, and knows neither table nor requests.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	restetcd "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// Config says how to connect to etcd. Except Endpoints, names are those of kube-apiserver's flags.
type Config struct {
	Endpoints []string // the URLs of etcd's members
	Prefix    string   // the prefix of all keys. Empty means /registry
	// CAFile, CertFile and KeyFile are PEM files, read for each connection. Empty: the system's roots, no certificate.
	CAFile, CertFile, KeyFile string
}

// Store stores APIServices. Make one with New.
type Store struct {
	client *kubernetes.Client
	rest   REST
	status *restetcd.StatusREST
	prefix string
	raw    *bounded // below rest
	cached *cacher.Cacher
	end    func()       // closes raw
	terms  atomic.Int64 // elections under way
}

const (
	// keepAlive and keepAliveTimeout detect a dead member in 15 s on connections with requests in flight: etcd closes
	// connections that are pinged without any. gRPC allows no more pings; etcd's --grpc-keepalive-min-time is 5 s.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 5 * time.Second
	// againAfter is the longest pause before another try to connect. It is the registry's after a failure to list: the
	// table is outdated meanwhile. With gRPC's own, two minutes, an outage of minutes lasts that much longer.
	againAfter   = 3 * time.Second
	leaseSeconds = 15 // how long a dead leader's lease lasts, as for Kubernetes' own components
)

// New makes a Store of the objects that scheme knows. It does not wait for etcd.
func New(scheme *runtime.Scheme, c Config) (s *Store, err error) {
	c.Prefix = cmp.Or(c.Prefix, "/registry")
	client := clientv3.Config{
		Endpoints: c.Endpoints, DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions: []grpc.DialOption{reconnection()},
		Logger:      zap.NewNop(), // callers log what fails
	}
	if len(c.Endpoints) > 0 && strings.HasPrefix(c.Endpoints[0], "https:") {
		var credentials grpc.DialOption
		if credentials, err = transportCredentials(c); err != nil {
			return nil, fmt.Errorf("reading keys for etcd: %w", err)
		}
		client.DialOptions = append(client.DialOptions, credentials)
	}
	s = &Store{prefix: c.Prefix}
	if s.client, err = kubernetes.New(client); err != nil {
		return nil, fmt.Errorf("making client of etcd: %w", err)
	}
	if s.raw, s.end, err = s.open(scheme, c.Prefix); err != nil {
		return nil, fmt.Errorf("making storage in etcd: %w", err)
	}
	metrics.Register()
	s.rest, s.cached = Over(scheme, s.raw)
	s.status = restetcd.NewStatusREST(scheme, s.rest.REST)
	return s, nil
}

func reconnection() grpc.DialOption {
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = againAfter
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: requestTimeout})
}

// Storage returns the storages for k8s.io/apiserver's installer, by path.
func (s *Store) Storage() map[string]rest.Storage {
	return map[string]rest.Storage{"apiservices": s.rest, "apiservices/status": s.status}
}

// Run checks for restores of etcd until ctx ends, and closes the Store once elections have given up their leases.
func (s *Store) Run(ctx context.Context) error {
	s.raw.detectRestores(ctx, s.cached)
	for late := time.Now().Add(2 * time.Second); s.terms.Load() > 0 && time.Now().Before(late); { // etcd may be away
		latest.Sleep(context.WithoutCancel(ctx), 5*time.Millisecond)
	}
	err := s.client.Close() // first: it ends requests that wait for etcd
	s.rest.Destroy()
	s.end()
	return errors.Join(ctx.Err(), err)
}

// Elect takes part in the named election among all processes with the same prefix, until ctx ends,
// and calls lead while this process leads. When lead's context ends, the election is lost.
func (s *Store) Elect(ctx context.Context, name string, lead func(context.Context)) error {
	for ctx.Err() == nil {
		if s.elect(ctx, name, lead) != nil {
			latest.Sleep(ctx, time.Second)
		}
	}
	return ctx.Err()
}

func (s *Store) elect(ctx context.Context, name string, lead func(context.Context)) error {
	s.terms.Add(1)
	defer s.terms.Add(-1)
	session, err := concurrency.NewSession(s.client.Client,
		concurrency.WithTTL(leaseSeconds), concurrency.WithContext(ctx))
	if err != nil {
		return err
	}
	defer func() { // revoke the lease even after ctx has ended, so that others need not wait until it expires
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		session.Orphan()
		_, _ = s.client.Revoke(ctx, session.Lease()) // else it expires
	}()
	e := concurrency.NewElection(session, path.Join("/", s.prefix, "fairlead.dev", name))
	held, end := context.WithCancel(session.Ctx()) // ends with the lease, and with ctx
	defer end()
	defer context.AfterFunc(s.raw.watches.Load(), end)() //nolint:contextcheck // a restore may hide a leader's end
	if err = e.Campaign(held, ""); err == nil {          //nolint:contextcheck // held is derived from ctx
		lead(held) //nolint:contextcheck // likewise
	}
	return err
}
