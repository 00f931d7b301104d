package trust

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Config is what a Trust needs. Only Table must be set.
type Config struct {
	// Table is the registry's current table.
	Table func() *registry.Table
	// Watch follows ConfigMaps. Nil: backends with the annotation ca-from are refused.
	Watch Watch
	// ClientCertificate is what backends are shown. Nil: nothing.
	ClientCertificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Renewed tells that an APIService's referenced bundle has changed, which no new table says. It must not block. Nil: nobody is told.
	Renewed func(apiService string)
	// Logger gets reloads, overlaps and refused certificates. Nil discards.
	Logger *slog.Logger
	// Metrics registers the metrics. Nil: unregistered.
	Metrics prometheus.Registerer
}

// Trust holds whom to trust as each APIService's backend. It needs Run to follow the table and time; TLS works before, for what is in the table.
type Trust struct {
	cfg   Config
	hooks *hooks
	local *backend

	applied atomic.Uint64 // generation of the table that was applied last

	// mu guards the maps and orders apply. It is never held over I/O.
	mu       sync.RWMutex
	backends map[string]*backend // by APIService
	// shared is what holds for all that have a Backend: its bundle, and nothing that was trusted before.
	shared map[*registry.Backend]*backend
	// unused are Backends that nobody has any more, as long as their connections may carry what is left of those that had them.
	unused  map[*registry.Backend]struct{}
	entries []*registry.Entry // of the applied table

	// rewatch asks Run to look at the references anew: whoever applies a table need not be Run.
	rewatch atomic.Bool
}

// New makes a Trust and registers its metrics.
func New(cfg Config) (*Trust, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Trust{
		cfg:      cfg,
		backends: make(map[string]*backend),
		shared:   make(map[*registry.Backend]*backend),
		unused:   make(map[*registry.Backend]struct{}),
	}
	t.hooks = newHooks(cfg)
	t.local = newLocal(t.hooks)
	// The system's roots are read from disk on first use: do it here, not under a lock. Without any the empty pool refuses everybody.
	if _, err := x509.SystemCertPool(); err != nil {
		cfg.Logger.Warn("reading system roots", "err", err)
	}
	h := t.hooks
	return t, metric.Register(cfg.Metrics, "backend trust", h.missingSAN, h.sha1, h.refusals, h.reloads, newCollector(t))
}

// Run follows the table, the referenced ConfigMaps and time, until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	w := newWatches(t)
	defer w.stop()
	// Replaced roots and expired chains are looked for within a second: a watch must end within 5 s of its trust, and its pool needs 4 of them.
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for table := range latest.Of(ctx, t.cfg.Table, tick.C) {
		t.apply(table.Generation(), table.Entries())
		if t.rewatch.Swap(false) {
			w.sync(ctx)
		}
		t.tick(time.Now())
	}
	return ctx.Err()
}

// tick ends what time has ended.
func (t *Trust) tick(now time.Time) {
	if now.Unix() < t.hooks.due.Load() {
		return
	}
	t.hooks.due.Store(now.Add(forgetEvery).Unix()) // first: what is found to end sooner says so
	t.local.tick(now)
	for _, b := range t.both() {
		b.tick(now)
	}
}

// TLS returns a client configuration for dialling b: it sends the server name (the caller sets it to b.NameAt where b has several), shows the client certificate and verifies the server against what the APIService trusts
// at the moment of the handshake. Without an APIService it is for a connection that all may use that have b: then b's bundle counts alone, so that what one of them says of
// trust holds for no other, and b must have no Owner. The caller owns it and adds its NextProtos. An error, always an *Error, means that no handshake could succeed now.
func (t *Trust) TLS(apiService string, b *registry.Backend) (*tls.Config, error) {
	s, err := t.lookup(apiService, b)
	if err != nil {
		return nil, err
	}
	v := s.current.Load()
	if v.fault != nil && len(live(v.previous, time.Now())) == 0 {
		return nil, v.fault
	}
	name := v.name
	if strings.Contains(name, ",") { // which one is to be sent depends on the address
		name = ""
	}
	return &tls.Config{
		ServerName:           name,
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: t.cfg.ClientCertificate,
		// VerifyConnection does all that is skipped here, against roots that may change after this configuration was made; and it gives a reason.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   func(cs tls.ConnectionState) error { return s.handshake(cs.PeerCertificates) },
		// No ClientSessionCache: see the package's concurrency rule.
	}, nil
}

// Guard watches an open connection to b whose server presented chain, leaf first. lost is closed when the chain no longer verifies by what the APIService trusts then, or
// without one by b: from then on the connection must take no new stream, and its watches must end within 5 s. It is closed at once when it does not verify now, so call Guard
// after the handshake. release ends the guard; it may be called more than once and must be called when the connection closes. lost is closed, too, when the APIService is
// deleted; without one only time closes it.
func (t *Trust) Guard(apiService string, b *registry.Backend, chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	s, err := t.lookup(apiService, b)
	if err != nil {
		gone := make(chan struct{})
		close(gone)
		return gone, func() {}
	}
	g := s.guard(chain)
	return g.lost, func() { s.release(g) }
}

// lookup finds the trust on whose behalf b is dialled, applying a table that Run has not come to yet.
func (t *Trust) lookup(apiService string, b *registry.Backend) (*backend, error) {
	if table := t.cfg.Table(); table.Generation() > t.applied.Load() {
		t.apply(table.Generation(), table.Entries())
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.backends[apiService]
	if apiService == "" {
		s = t.shared[b]
	}
	if s != nil {
		return s, nil
	}
	return nil, refuse(reasonInvalidBundle, nil, "the backend %s is no longer that of an APIService", b)
}

// apply takes the remote entries of a table, unless a newer one has been taken.
func (t *Trust) apply(generation uint64, entries []*registry.Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if generation <= t.applied.Load() {
		return
	}
	for _, c := range latest.Diff(t.entries, entries) {
		if c.Old != nil && c.Old.Backend != nil {
			t.drop(c.Old, c.New)
		}
		if c.New != nil && c.New.Backend != nil {
			t.take(c.New)
		}
	}
	t.entries = entries
	for b := range t.unused {
		if !t.shared[b].guarding() {
			delete(t.shared, b)
			delete(t.unused, b)
		}
	}
	// After the maps: who finds the generation applied must find what is in it.
	t.applied.Store(generation)
}

// take applies a remote entry that is new or has changed.
func (t *Trust) take(e *registry.Entry) {
	s := t.backends[e.Name]
	if s == nil {
		s = newBackend(e.Name, t.hooks)
		t.backends[e.Name] = s
	}
	if e.Backend.CAFrom != "" {
		t.rewatch.Store(true)
	}
	if e.Backend.Owner == "" {
		delete(t.unused, e.Backend)
		if t.shared[e.Backend] == nil {
			all := newBackend("", t.hooks)
			all.apply(e.Backend, 0, nil)
			t.shared[e.Backend] = all
		}
		t.shared[e.Backend].join(e.Name)
	}
	s.apply(e.Backend, e.Policy.CAOverlap, t.shared[e.Backend])
}

// drop ends what holds for a remote entry that is not in the table any more, and for its APIService if that is not, or has become Local.
func (t *Trust) drop(e, now *registry.Entry) {
	if e.Backend.CAFrom != "" {
		t.rewatch.Store(true)
	}
	if e.Backend.Owner == "" && t.shared[e.Backend].part(e.Name) == 0 {
		t.unused[e.Backend] = struct{}{}
	}
	if now == nil || now.Backend == nil {
		t.backends[e.Name].end()
		delete(t.backends, e.Name)
		t.hooks.forget(e.Name)
	}
}

// both returns the trust of each APIService, and that of each Backend that several may have.
func (t *Trust) both() []*backend {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Values(t.backends)), maps.Values(t.shared))
}

// all returns the backends in order of their APIServices' names.
func (t *Trust) all() []*backend {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.backends), func(a, b *backend) int { return cmp.Compare(a.name, b.name) })
}
