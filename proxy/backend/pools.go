package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Config configures Pools (makeBackends in cmd/fairlead). Required are all but Logger and Metrics.
type Config struct {
	// Tables has the current table.
	Tables latest.Tables[*registry.Table]
	// TLS makes the configuration of one connection to a backend: the trust and our client
	// certificate. apiService is the APIService for which it is dialed, or empty for all that have
	// the Backend. The caller may change the result.
	TLS func(apiService string, b *registry.Backend) (*tls.Config, error)
	// Guard watches a connection whose server presented chain. lost is closed when the chain is no
	// longer trusted by the APIService, or by b if apiService is empty. release is called when the
	// connection has ended.
	Guard func(apiService string, b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func())
	// IdentityChanged returns a channel that is closed when the proxy client certificate is
	// replaced; the next call returns a new one. All connections then drain.
	IdentityChanged func() <-chan struct{}
	// Dial connects to an address, or refuses to: the author of an EndpointSlice chooses the
	// addresses, and our client certificate is shown to them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Signal reports to health that live traffic found an endpoint failing: a dial, a handshake, an
	// unanswered ping, a lost connection. It must not block.
	Signal func(apiService, address string, err error)
	// Observe reports to health how long an endpoint took from the end of a request to the
	// first byte of its response, for every request that is not long-running. It is on the hot
	// path: it must not block, lock or allocate.
	Observe func(apiService, address string, took time.Duration)
	// Logger logs failed dials (debug). Nil discards.
	Logger *slog.Logger
	// Metrics registers fairlead_backend_*. Nil means unregistered.
	Metrics prometheus.Registerer
}

// Pools carry requests to the extension servers of the table. They work once New has returned, but
// follow the table only while Run runs.
type Pools struct {
	cfg     Config
	shared  *shared
	byEntry sync.Map      // *registry.Entry of the applied table → *Upstream
	applied atomic.Uint64 // generation of the last applied table

	// mu guards the fields below and orders apply. It is never held during I/O. The engine may wait
	// for it while it holds a shard's mutex.
	mu       sync.Mutex
	entries  []*registry.Entry  // of the applied table
	remotes  map[string]*remote // by APIService
	carriers map[*registry.Backend]*carrier
	guarded  map[heldConn]struct{}
	// shrunk waits for closeUnused, detached for moveDetached.
	shrunk   map[*carrier]struct{}
	detached []*Upstream
}

// remote is the Upstream of an APIService. It survives changes of the trust.
type remote struct {
	*Upstream
	spec atomic.Pointer[registry.Backend]
	on   *carrier // guarded by Pools.mu; nil means that the backend speaks HTTP/1.1
}

// New returns Pools and registers their metrics.
func New(cfg Config) (*Pools, error) {
	if cfg.Tables == nil || cfg.TLS == nil || cfg.Guard == nil || cfg.IdentityChanged == nil || cfg.Dial == nil || cfg.Signal == nil || cfg.Observe == nil {
		return nil, errors.New("making backend pools: Tables, TLS, Guard, IdentityChanged, Dial, Signal and Observe are required")
	}
	p := &Pools{
		cfg: cfg, shared: newShared(cfg.Logger), remotes: make(map[string]*remote), carriers: make(map[*registry.Backend]*carrier), guarded: make(map[heldConn]struct{}),
		shrunk: make(map[*carrier]struct{}),
	}
	metric.Register(cfg.Metrics, newCollector(p.upstreams, true))
	return p, nil
}

// Run follows the table until ctx ends. Then it closes every connection.
func (p *Pools) Run(ctx context.Context) error {
	defer p.shared.stop()
	identity := p.cfg.IdentityChanged()
	for {
		t := p.cfg.Tables.Table()
		p.apply(t.Generation(), t.Servers())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Superseded():
		case <-identity:
			identity = p.cfg.IdentityChanged()
			p.mu.Lock()
			for _, r := range p.remotes {
				r.drain()
			}
			for _, c := range p.carriers {
				c.drain()
			}
			p.mu.Unlock()
		}
	}
}

// Upstream returns the Upstream of a remote entry. Nil means that the APIService is gone.
func (p *Pools) Upstream(e *registry.Entry) *Upstream {
	if u, ok := p.byEntry.Load(e); ok {
		return u.(*Upstream) //nolint:forcetypeassert // nothing else is stored
	}
	// The request's table differs from Run's: if it is newer, apply it first. Then look the
	// APIService up by name.
	if t := p.cfg.Tables.Table(); t.Generation() > p.applied.Load() {
		p.apply(t.Generation(), t.Servers())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.remotes[e.Name]; r != nil {
		return r.Upstream
	}
	return nil
}

// apply applies a table, unless a newer one was applied.
func (p *Pools) apply(generation uint64, entries []*registry.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if generation <= p.applied.Load() {
		return
	}
	changes := latest.Diff(p.entries, entries)
	for _, c := range changes {
		if e := c.New; e != nil && e.Backend != nil {
			r := p.remotes[e.Name]
			if r == nil {
				r = p.newRemote(e.Name)
				p.remotes[e.Name] = r
			}
			p.updateRemote(r, e)
		}
	}
	for _, c := range changes { // last, to keep connections of a Backend that others use now
		if c.Old == nil || c.New != nil && c.New.Backend != nil || p.remotes[c.Old.Name] == nil {
			continue
		}
		r := p.remotes[c.Old.Name]
		delete(p.remotes, c.Old.Name)
		p.byEntry.Delete(c.Old)
		p.detach(r)
		r.close()
	}
	p.entries = entries
	p.closeUnused()
	p.moveDetached()
	// After the maps: a reader that sees the generation must see its entries.
	p.applied.Store(generation)
}

// updateRemote updates an upstream for a new entry.
func (p *Pools) updateRemote(r *remote, e *registry.Entry) {
	old, b, was := r.spec.Load(), e.Backend, r.view.Load()
	if was.entry == e {
		return
	}
	if old != b {
		r.spec.Store(b)
		p.move(r, b) // before the entry is published: its requests must not use the old connections
	}
	if fewer := r.update(&view{
		entry: e, maxInFlight: int64(e.Settings.MaxInFlight), maxLongRunning: int64(e.Settings.MaxLongRunning), pingTimeout: b.PingTimeout,
	}, e.Endpoints); fewer && r.on != nil {
		p.shrunk[r.on] = struct{}{}
	}
	p.byEntry.Delete(was.entry)
	p.byEntry.Store(e, r.Upstream)
	// A connection keeps its ping timeout; a new one applies to later connections. Where only the
	// trust differs, Guard decides: a connection that verifies under the new trust continues.
	if old != nil && old != b && (!old.SameService(b) || old.HTTP1 != b.HTTP1 || old.PingTimeout != b.PingTimeout) {
		r.drain()
	}
}

func (p *Pools) newRemote(name string) *remote {
	r := &remote{}
	old, either := []string{"http/1.1"}, []string{"h2", "http/1.1"} // called for every request
	r.Upstream = newUpstream(name, p.shared, target{
		tls: func() (*tls.Config, error) { return p.cfg.TLS(name, r.spec.Load()) },
		guard: func(chain []*x509.Certificate) (<-chan struct{}, func()) {
			return p.cfg.Guard(name, r.spec.Load(), chain)
		},
		dial:    p.cfg.Dial,
		signal:  func(address string, err error) { p.cfg.Signal(name, address, err) },
		observe: func(address string, took time.Duration) { p.cfg.Observe(name, address, took) },
		protocols: func() []string {
			if r.spec.Load().HTTP1 {
				return old
			}
			return either
		},
		// An HTTP/1.1 backend needs one connection for each request; the APIService's limits apply.
		maxConns: 16 << 10,
		doubt:    suspicionTime,
	})
	return r
}

func (p *Pools) upstreams() []*Upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*Upstream, 0, len(p.remotes))
	for _, r := range p.remotes {
		list = append(list, r.Upstream)
	}
	return list
}
