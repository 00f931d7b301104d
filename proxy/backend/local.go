package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Pool is a pool of the local apiserver. The zero Pool is none.
type Pool uint8

// The pools.
const (
	// PoolCertificate carries the proxy client certificate, with which any user can be asserted by X-Remote-*. If
	// Fairlead impersonates callers, it carries this process's own certificate, if it has one. HTTP/2 only.
	PoolCertificate Pool = iota + 1
	// PoolProven has no client certificate. It is for recently accepted tokens. HTTP/2 only.
	PoolProven
	// PoolUnproven has no client certificate. It is for anonymous requests and other tokens. kube-apiserver closes an
	// HTTP/2 connection with GOAWAY after an unauthenticated request, but leaves HTTP/1.1 connections open. So this
	// pool uses HTTP/1.1, one request at a time on a connection: bad tokens cost no connection. It is limited.
	PoolUnproven
	// PoolHealth is like PoolUnproven, for /readyz and /healthz: a load balancer's probe must not wait for clients.
	PoolHealth

	pools = int(PoolHealth)
)

const (
	maxHealth = 16 // limits the health pool: probes take a millisecond or two. Above it the last verdict is the answer
	// maxUnproven limits the unproven pool's requests in flight. A token is unproven for one request, and refused
	// within a millisecond. One address may use a quarter: enough if all clients behind a load balancer are new.
	maxUnproven = 1024
	// maxUnprovenLong limits its long-running requests and upgraded sessions, each with its own
	// connection: those without a token, or with one that was not accepted.
	maxUnprovenLong = 1024
	// defaultWait is how long a request waits if no local apiserver can be reached: for a reconnect
	// through a load balancer or a quick restart. With longer waits requests would pile up; clients
	// then get 503 with Retry-After, and client-go retries ten times.
	defaultWait = 2 * time.Second
	restart     = 10 * time.Second // the usual time of a restart. After it, no request waits any more
	// keptServer is how long a local apiserver that is named no longer keeps its share of the
	// documents, as one that is down does: an upgrade of a control-plane node takes minutes.
	keptServer = 15 * time.Minute
	unready    = 20 * time.Second // after it, the watches of an unhealthy server end, while another one is healthy
	unread     = 5 * time.Second  // after it, a healthy server is used, though nobody could read what it serves
)

// LocalConfig configures a Local (kube.connect in cmd/fairlead). Required: Servers, TLS, IdentityChanged, Dial, Signal.
type LocalConfig struct {
	Servers []string // the addresses of the local apiservers at the start, host and port
	First   bool     // prefer the first usable server. False means the one with the fewest clients
	Finds   bool     // Follow will be called with all that there are. False means that Servers are all
	Name    string   // PoolCertificate's, in metrics. Empty means local-certificate
	// TLS makes the configuration of one connection, with the proxy client certificate if certificate is set, otherwise
	// without one. An empty ServerName becomes the server's host. The caller may change the result.
	TLS func(certificate bool) (*tls.Config, error)
	// Guard is as in Config. Nil means that connections are trusted as long as they last.
	Guard           func(chain []*x509.Certificate) (lost <-chan struct{}, release func())
	IdentityChanged func() <-chan struct{} // as in Config, for PoolCertificate
	// Dial connects to an address, or refuses to.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Signal func(address string, err error) // as in Config
	Renew  func()                          // has all servers probed at once. Nil means that nothing can
	// Memory bounds what held bodies and heads of answers take, with everything else. Nil means its own.
	Memory       *hold.Bound
	metric.Sinks // changes of a server's health, and fairlead_backend_*; Pools may have the same: names differ
}

// Local carries requests to the local apiserver. It works once NewLocal has returned; Report sets its servers' health.
type Local struct {
	*shared
	cfg   LocalConfig
	pools [pools]*Upstream

	mu   sync.Mutex      // guards told, and orders changes of servers and only. It is never held during I/O
	told map[string]told // :: document

	servers atomic.Pointer[servers]
	only    atomic.Pointer[map[schema.GroupVersionResource][]*localServer]
	alike   atomic.Pointer[bool]      // all servers list the same resources. Nil: they have not been compared yet
	down    atomic.Pointer[time.Time] // when the last server ceased to be healthy. Nil: one is healthy
}

// NewLocal returns a Local and registers its metrics.
func NewLocal(cfg LocalConfig) *Local {
	if cfg.Guard == nil {
		cfg.Guard = func([]*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
	}
	l := &Local{cfg: cfg, shared: newShared(cfg.Log(), cfg.Memory), told: make(map[string]told)}
	l.only.Store(new(map[schema.GroupVersionResource][]*localServer))
	l.pools = [pools]*Upstream{
		l.newPool(PoolCertificate, cmp.Or(cfg.Name, "local-certificate"), 1024, "h2"),
		l.newPool(PoolProven, "local-proven", 1024, "h2"),
		l.newPool(PoolUnproven, "local-unproven", maxUnproven+maxUnprovenLong, "http/1.1"),
		l.newPool(PoolHealth, "local-health", maxHealth, "http/1.1"),
	}
	l.servers.Store(&servers{superseded: make(chan struct{})})
	l.Follow(cfg.Servers)
	metric.Register(cfg.Metrics, newCollector(func() []*Upstream { return l.pools[:] }, false))
	return l
}

func (l *Local) newPool(p Pool, name string, maxConns int, protocols ...string) *Upstream {
	u := newUpstream(name, l.shared, target{
		tls:       func() (*tls.Config, error) { return l.cfg.TLS(p == PoolCertificate) },
		guard:     l.cfg.Guard,
		dial:      l.cfg.Dial,
		signal:    l.signal,
		observe:   func(string, time.Duration) {}, // apiservers are not compared: all serve the same etcd
		protocols: func() []string { return protocols },
		maxConns:  maxConns,
		wait: func() time.Duration {
			if l.Lost() {
				return 0
			}
			return defaultWait
		},
	})
	u.pool = p
	u.inFlight.Lend, u.longRunning.Lend = false, false // these limits are against strangers, so no place is lent
	return u
}

// Upstream returns a pool, or nil if there is no such pool.
func (l *Local) Upstream(p Pool) *Upstream {
	if p == 0 || int(p) > pools {
		return nil
	}
	return l.pools[p-1]
}

// Ready returns nil if a local apiserver can be used, otherwise an error.
func (l *Local) Ready() error {
	if l.down.Load() == nil {
		return nil
	}
	return errors.New("no local apiserver is healthy")
}

// Lost reports whether no server was healthy for longer than a restart takes. Waits and retries would only hide that.
func (l *Local) Lost() bool {
	down := l.down.Load()
	return down != nil && time.Since(*down) > restart
}

// Run watches the identity until ctx ends. Then it closes every connection.
func (l *Local) Run(ctx context.Context) error {
	defer l.stop()
	identity, tick := l.cfg.IdentityChanged(), time.Tick(balanceEvery)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick:
			l.balance()
			l.endWatches()
		case <-identity:
			identity = l.cfg.IdentityChanged()
			l.pools[PoolCertificate-1].drain()
		}
	}
}

// Report sets the health of the server at r's Address after a probe; after a Signal also if that is unchanged.
func (l *Local) Report(r registry.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.servers.Load()
	s := now.find(r.Address)
	if s == nil {
		return
	}
	e := &s.is
	e.Hung, e.Message = r.Hung, r.Message
	if e.Health != r.Health {
		e.Health, e.Since, s.back = r.Health, time.Now(), s.of[0].out.Load()
		l.spawn(func() { // a line is I/O
			l.log.Info("local apiserver changed",
				"endpoint", r.Address, "healthy", r.Health == registry.Healthy, "message", r.Message)
		})
	}
	if l.down.Load() != nil && r.Health == registry.Healthy && l.cfg.Renew != nil {
		l.cfg.Renew() // the others may be back, too: until their pauses are over, all clients would go to this one
	}
	l.publishLocked(now.all, now.found)
	for _, e := range s.of {
		e.suspicion.judged(r.Began)
	}
}

func (l *Local) publishLocked(all []*localServer, found bool) {
	now, ready := &servers{all: all, found: found, superseded: make(chan struct{})}, false
	for _, s := range all {
		s.ready.Store(s.is.Health == registry.Healthy)
		ready = ready || s.ready.Load()
		now.list = append(now.list, s.is)
	}
	if ready {
		l.down.Store(nil)
	} else {
		l.down.CompareAndSwap(nil, new(time.Now()))
	}
	was := l.servers.Swap(now)
	defer close(was.superseded)
	list, next := slices.Clone(now.list), l.successorLocked(all)
	for i, s := range all {
		if list[i].Health == registry.Healthy && l.unknownLocked(s.is.Address) {
			list[i].Health = registry.Unprobed
		}
		s.back = s.back && list[i].Health != registry.Healthy // who has asked nothing meanwhile still stays there
		list[i].Terminating = s.is.Terminating && next
		s.leaves.Store((s.is.Terminating || s.back) && next)
	}
	for i, u := range l.pools {
		u.update(&view{
			maxInFlight:    [pools]int64{PoolUnproven - 1: maxUnproven, PoolHealth - 1: maxHealth}[i],
			maxLongRunning: [pools]int64{PoolUnproven - 1: maxUnprovenLong, PoolHealth - 1: maxHealth}[i],
		}, list)
	}
}

// signal asks for a probe. A server that one pool has lost is suspect in all pools. A busy one may only dial slowly.
func (l *Local) signal(address string, err error) {
	if s := l.servers.Load().find(address); s != nil && !errors.Is(err, errPatience) && !errors.Is(err, errIdle) {
		for _, e := range s.of {
			e.lost()
		}
	}
	l.cfg.Signal(address, err)
}

// servers are the local apiservers at one moment. It is immutable.
type servers struct {
	all        []*localServer
	list       []registry.Endpoint // their health
	found      bool                // all are known, or were when they were first looked for
	superseded chan struct{}
}

func (s *servers) Superseded() <-chan struct{} { return s.superseded }

func (s *servers) find(address string) *localServer {
	for _, at := range s.all {
		if at.of[0].address == address {
			return at
		}
	}
	return nil
}

// Servers returns the local apiservers with their health, in the order in which they were named, and a channel that is
// closed once that has changed. Those that are named no longer are Terminating and come last.
func (l *Local) Servers() (list []registry.Endpoint, superseded <-chan struct{}) {
	now := l.servers.Load()
	return now.list, now.superseded
}

// Follow sets the addresses of the local apiservers. A new one gets clients once all documents know it. Once there is
// one with clients, one that is named no longer gets no new requests, unless only it serves what is asked for. It is
// forgotten by a call after 15 minutes, but not while it is healthy and none is to take over. Without addresses, as if
// none was found, all stay.
func (l *Local) Follow(addresses []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, now, all := l.servers.Load(), time.Now(), make([]*localServer, 0, len(addresses))
	for _, a := range addresses {
		s := was.find(a)
		if s == nil {
			s = &localServer{first: l.cfg.First, is: registry.Endpoint{Address: a}, fixed: Stay{stuck: true}}
			s.fixed.at.Store(s)
			for p, u := range l.pools {
				s.of[p] = u.provide(a)
				s.of[p].server = s
			}
		}
		s.is.Terminating = false
		all = append(all, s)
	}
	if len(addresses) == 0 {
		all = was.all
	}
	for _, s := range was.all {
		if slices.Contains(all, s) {
			continue
		}
		if !s.is.Terminating {
			s.is.Terminating, s.left = true, now
			l.spawn(func() { l.log.Info("local apiserver is named no longer", "endpoint", s.of[0].address) })
		}
		if now.Sub(s.left) < keptServer || s.is.Health == registry.Healthy && !l.successorLocked(all) {
			all = append(all, s)
		}
	}
	found := !l.cfg.Finds || len(was.all) > 0 // else NewLocal calls this
	same := func(s *localServer, e registry.Endpoint) bool { return s.is == e }
	if found != was.found || !slices.EqualFunc(all, was.list, same) {
		l.publishLocked(all, found)
	}
}

// successorLocked reports whether a server that is named can be used.
func (l *Local) successorLocked(all []*localServer) bool {
	return slices.ContainsFunc(all, func(s *localServer) bool {
		return s.is.Health == registry.Healthy && !s.is.Terminating && !l.unknownLocked(s.is.Address)
	})
}

// Each calls f for each local apiserver, on a goroutine of its own with a context that ends when
// the server is forgotten, until ctx ends. It returns when all have returned.
func (l *Local) Each(ctx context.Context, f func(ctx context.Context, address string)) error {
	var running sync.WaitGroup
	defer running.Wait()
	var known []*localServer
	for now := range latest.Of(ctx, l.servers.Load, time.Tick(balanceEvery)) {
		for _, s := range now.all {
			if slices.Contains(known, s) || !now.found && !l.Told() {
				continue
			}
			known = append(known, s)
			running.Go(func() {
				each, end := context.WithCancel(ctx)
				defer end()
				defer context.AfterFunc(s.of[0].gone, end)() //nolint:contextcheck // it only ends each
				f(each, s.of[0].address)
			})
		}
		known = slices.DeleteFunc(known, func(s *localServer) bool { return !slices.Contains(now.all, s) })
	}
	return ctx.Err()
}
