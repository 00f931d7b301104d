package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Pool is one of the local apiserver's pools. The zero Pool is none, and nothing is sent over it.
type Pool uint8

// The pools.
const (
	// PoolCertificate carries the proxy client certificate: whoever writes on it can be anyone by X-Remote-*. HTTP/2 only.
	PoolCertificate Pool = iota + 1
	// PoolProven has no client certificate, for tokens that were lately accepted. HTTP/2 only.
	PoolProven
	// PoolUnproven has no client certificate, for anonymous requests and tokens not lately accepted. kube-apiserver answers an unauthenticated HTTP/2 request with a
	// GOAWAY, but leaves an HTTP/1.1 connection open: so this pool speaks HTTP/1.1, where a connection carries one request at a time, and bad tokens cost neither new
	// connections nor anybody else's. It is bounded.
	PoolUnproven
	// PoolHealth is as PoolUnproven, for /readyz and /healthz alone: a load balancer's probe must not wait for anybody's place.
	PoolHealth

	pools = int(PoolHealth)
)

const (
	// maxUnproven bounds the unproven pool's requests in flight. A token is unproven for one request, and a refused one is answered
	// within a millisecond; a quarter, which one address may have, is what comes at once when all clients behind a balancer are new.
	maxUnproven = 1024
	// maxUnprovenLong bounds its long-running requests and upgraded sessions, each on a connection of its own: those of callers without
	// a token, and with one that was not accepted.
	maxUnprovenLong = 1024
	// maxHealth bounds the health pool: a probe takes a millisecond or two, and beyond it our own prober's last verdict is the answer.
	maxHealth = 16
	// defaultWait is how long a request waits for any local apiserver to come back: a reconnect through a load balancer or a quick restart. Longer waits would heap up
	// requests; after it clients get 503 and a Retry-After, which client-go obeys ten times.
	defaultWait = 2 * time.Second
	// localDoubt is for how long a server that has lost a connection is the worse choice: until the probe that Signal asks for, which comes much earlier.
	localDoubt = 10 * time.Second
)

// LocalConfig is what a Local needs. Servers, TLS and Dial must be set.
type LocalConfig struct {
	// Servers are the URLs of the local apiservers: https, host and port (443 when missing), nothing else.
	Servers []string
	// TLS makes the configuration of one connection, with the proxy client certificate if certificate is set, without any if not. An empty ServerName becomes the
	// server's host. It is changed by the caller.
	TLS func(certificate bool) (*tls.Config, error)
	// Guard is as in Config. Nil: connections are trusted for as long as they last.
	Guard func(chain []*x509.Certificate) (lost <-chan struct{}, release func())
	// IdentityChanged is as in Config, for the certificate pool. Nil: the certificate never changes.
	IdentityChanged func() <-chan struct{}
	// Dial connects to an address, or refuses to.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Signal is as in Config. Nil: nobody is told.
	Signal func(address string, err error)
	// Wait is how long a request waits when no server can be reached. Zero: 2 s. Negative: not at all.
	Wait time.Duration
	// Hold is as in Config.
	Hold func(n int64) bool
	// Logger gets changes of a server's health. Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_backend_*; give it the Pools' too, the names of the pools are distinct. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Local carries requests to the local apiserver. It works from NewLocal on; Report says which of its servers are well.
type Local struct {
	cfg   LocalConfig
	owner *owner
	pools [pools]*Upstream

	// mu guards health and orders its publication. It is never held over I/O.
	mu     sync.Mutex
	health []registry.Endpoint

	ready atomic.Bool
}

// NewLocal makes a Local and registers its metrics.
func NewLocal(cfg LocalConfig) (*Local, error) {
	if len(cfg.Servers) == 0 || cfg.TLS == nil || cfg.Dial == nil {
		return nil, errors.New("making the local apiserver's pools: Servers, TLS and Dial are required")
	}
	l := &Local{cfg: cfg, owner: newOwner(cfg.Logger)}
	l.owner.grant = cfg.Hold
	for _, s := range cfg.Servers {
		address, err := serverAddress(s)
		if err != nil {
			return nil, err
		}
		l.health = append(l.health, registry.Endpoint{Address: address})
	}
	l.pools = [pools]*Upstream{
		l.newPool("local-certificate", true, 1024, "h2"),
		l.newPool("local-proven", false, 1024, "h2"),
		l.newPool("local-unproven", false, maxUnproven+maxUnprovenLong, "http/1.1"),
		l.newPool("local-health", false, maxHealth, "http/1.1"),
	}
	l.publish()
	return l, metric.Register(cfg.Metrics, "the local apiserver", newCollector(func() []*Upstream { return l.pools[:] }, false))
}

// serverAddress is the host:port of a server's URL.
func serverAddress(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("parsing local apiserver %q: %w", server, err)
	}
	if u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || (u.Path != "" && u.Path != "/") {
		return "", fmt.Errorf("parsing local apiserver %q: want https://host:port", server)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

func (l *Local) newPool(name string, certificate bool, maxConns int, protocol string) *Upstream {
	guard := l.cfg.Guard
	if guard == nil {
		guard = noGuard
	}
	wait := l.cfg.Wait
	if wait == 0 {
		wait = defaultWait
	}
	protocols := []string{protocol}
	u := newUpstream(name, l.owner, target{
		tls:       func() (*tls.Config, error) { return l.cfg.TLS(certificate) },
		guard:     guard,
		dial:      l.cfg.Dial,
		signal:    l.signal,
		observe:   func(string, time.Duration) {}, // apiservers are not compared: each serves the same etcd
		protocols: func() []string { return protocols },
		maxConns:  maxConns,
		doubt:     localDoubt,
		wait:      wait,
	})
	// These bounds are against strangers, who are lent nothing.
	u.inFlight.Lend, u.longRunning.Lend = false, false
	return u
}

// Upstream returns a pool. Nil: there is no such pool.
func (l *Local) Upstream(p Pool) *Upstream {
	if p == 0 || int(p) > pools {
		return nil
	}
	return l.pools[p-1]
}

// Ready says why no local apiserver can be used. Nil: one can.
func (l *Local) Ready() error {
	if l.ready.Load() {
		return nil
	}
	return errors.New("no local apiserver is healthy")
}

// Run looks after the connections until ctx ends, and then closes every one.
func (l *Local) Run(ctx context.Context) error {
	defer l.owner.stop()
	identity := l.identity()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-identity:
			identity = l.identity()
			l.pools[PoolCertificate-1].drain()
		}
	}
}

func (l *Local) identity() <-chan struct{} {
	if l.cfg.IdentityChanged == nil {
		return nil
	}
	return l.cfg.IdentityChanged()
}

// Report takes what a probe has found out about a server. After a Signal it is called even if nothing has changed.
func (l *Local) Report(address string, health registry.Health, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.health {
		if e := &l.health[i]; e.Address == address && e.Health != health {
			e.Health, e.Message, e.Since = health, message, time.Now()
			l.owner.log.Info("local apiserver changed", "endpoint", address, "healthy", health == registry.Healthy, "message", message)
		}
	}
	l.publishLocked()
	l.each(address, func(e *endpoint) { e.suspicion.trust() })
}

// each does f for a server's endpoint in each pool.
func (l *Local) each(address string, f func(*endpoint)) {
	for _, u := range l.pools {
		u.mu.Lock()
		e := u.endpoints[address]
		u.mu.Unlock()
		if e != nil {
			f(e)
		}
	}
}

func (l *Local) publish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.publishLocked()
}

func (l *Local) publishLocked() {
	ready := false
	for _, e := range l.health {
		ready = ready || e.Health == registry.Healthy
	}
	l.ready.Store(ready)
	for i, u := range l.pools {
		v := &view{pingTimeout: defaultPing}
		switch Pool(i + 1) {
		case PoolUnproven:
			v.maxInFlight, v.maxLongRunning = maxUnproven, maxUnprovenLong
		case PoolHealth:
			v.maxInFlight, v.maxLongRunning = maxHealth, maxHealth
		}
		u.update(v, l.health)
	}
}

// signal asks for a probe. What one pool has lost the others will.
func (l *Local) signal(address string, err error) {
	l.each(address, (*endpoint).lost)
	if l.cfg.Signal != nil {
		l.cfg.Signal(address, err)
	}
}
