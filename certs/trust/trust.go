// Package trust decides, for each APIService's backend, which certificates its servers may present.
//
// A Trust follows the registry's table. For every remote entry it keeps one immutable view of the current trust: the
// roots of the caBundle (or of the ConfigMap in the annotation fairlead.dev/ca-from, or the system's), the name to
// verify, and for a while the replaced roots. TLS returns a client configuration whose verification reads that view at
// the moment of the handshake. Guard watches an open connection and signals when its chain is no longer valid.
//
// The rules of a rotation, in the order in which they are applied:
//
//   - New handshakes verify against the new roots at once.
//   - A chain that only the replaced roots verify is still accepted, for at most the overlap (a minute by default), and
//     only until some endpoint has presented a chain that the new roots verify: then only an attacker still needs the
//     old ones. Where the APIService has moved to another server, only until that one's roots have been read.
//   - Only a bundle replaced as a whole overlaps. If a CA is dropped from a bundle that keeps others, that is on
//     purpose: it is distrusted at once. A CA is identified by subject and key: of a renewed one both overlap.
//   - A bundle without one readable certificate is a fault (InvalidCABundle); the last good roots stay for the overlap,
//     as after a replacement.
//   - Roots never overlap with "verify nothing": leaving insecureSkipTLSVerify takes effect at once.
//
// The concurrency rule: views are immutable and read without a lock; each backend's mutex guards
// its transitions and is never held over I/O. Every handshake is a full one: a resumed session
// would show the certificates of an earlier handshake and not the endpoint's current ones.
//
// This package dials nothing and reads no file and no object: ConfigMaps come by Config.Watch.
package trust

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// Config configures a Trust (makeTrust in cmd/fairlead). Tables, Watch and Renewed must be set.
type Config struct {
	Tables latest.Tables[*registry.Table] // has the current table
	Watch  Watch                          // follows ConfigMaps and ClusterTrustBundles
	// ClientCertificate returns the certificate to present to backends. Nil means none.
	ClientCertificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Renewed is called when a referenced bundle has changed, for which there is no new table. It must not block.
	Renewed      func(apiService string)
	metric.Sinks // reloads, overlaps and refused certificates
}

// Trust verifies the backend of each APIService. It needs Run to follow the table and time. TLS
// works before Run, for backends in the table.
type Trust struct {
	cfg     Config
	metrics metrics
	local   *backend
	applied atomic.Uint64 // generation of the table that was applied last

	mu       sync.RWMutex        // guards the maps and serializes apply. It is never held over I/O
	backends map[string]*backend // by APIService
	// shared has the trust that all users of a Backend share: its bundle, without replaced roots.
	// Without users it is kept while its connections may carry the last requests of former ones.
	shared  map[*registry.Backend]*backend
	entries []*registry.Entry // of the applied table
	saidMu  sync.Mutex        // guards said, see say
	said    []line

	rewatch atomic.Bool // asks Run to sync the references: another goroutine may have applied the table
}

// New returns a Trust and registers its metrics.
func New(cfg Config) *Trust {
	cfg.Logger = cfg.Log()
	t := &Trust{
		cfg: cfg, backends: make(map[string]*backend), shared: make(map[*registry.Backend]*backend),
		metrics: metrics{
			missingSAN: metric.Count("apiserver_kube_aggregator_x509_missing_san_total",
				"Handshakes with backends whose certificate has no subject alternative name."),
			sha1: metric.Count("apiserver_kube_aggregator_x509_insecure_sha1_total",
				"Handshakes with backends whose chain has a SHA-1 signature."),
			refusals: metric.CountBy("fairlead_certificate_backend_refused_total",
				"Handshakes in which a backend's certificate was refused, by reason. "+
					"On a connection shared by several APIServices the refusal counts for one of them.",
				"apiservice", "reason"),
			reloads: metric.CountBy("fairlead_certificate_backend_bundle_reloads_total",
				"Changes of a backend's CA bundle, by outcome (success, failure).", "apiservice", "outcome"),
		},
	}
	// crypto/tls verifies the local apiserver's name: each of its addresses may have another.
	t.local = t.newBackend(localName)
	t.local.source = "system"
	t.local.current.Store(&view{anyName: true, current: &roots{}, changed: time.Now()})
	// The system's roots are read from disk on first use: here, not under a lock. If there are none, all is refused.
	if _, err := x509.SystemCertPool(); err != nil {
		cfg.Logger.Warn("reading system roots", "err", err)
	}
	m := &t.metrics
	metric.Register(cfg.Metrics, m.missingSAN, m.sha1, m.refusals, m.reloads, t.gauges())
	return t
}

// checkEvery is how often replaced roots and guarded chains are checked for their end: a watch must
// end within 5 s of its trust, and its pool needs 4 of them. For 10,000 APIServices it takes 3 ms.
const checkEvery = time.Second / 2

// Run follows the table, the referenced ConfigMaps and time, until ctx ends.
func (t *Trust) Run(ctx context.Context) error {
	w := &watches{
		t: t, running: make(map[types.NamespacedName]context.CancelFunc), seen: make(map[types.NamespacedName]object),
	}
	defer w.done.Wait() // all watches end with ctx
	last := time.Time{}
	for table := range latest.Of(ctx, t.cfg.Tables.Table, time.Tick(checkEvery)) {
		t.apply(table.Generation(), table.Servers())
		if t.rewatch.Swap(false) {
			w.sync(ctx)
		}
		if now := time.Now(); now.Sub(last) > checkEvery/2 { // not with each table of a storm
			last = now
			for _, b := range append(t.both(), t.local) {
				b.tick(now)
			}
			t.mu.Lock()
			maps.DeleteFunc(t.shared, func(_ *registry.Backend, b *backend) bool { return b.unused() })
			t.mu.Unlock()
		}
		t.logSaid()
	}
	return ctx.Err()
}

// TLS returns a client configuration for dialling b. It sends the server name (the caller sets it to b.NameAt where b
// has several), presents the client certificate, and verifies the server by what the APIService trusts at the moment of
// the handshake. An empty apiService means a connection shared by all users of b: then b must have no Owner, and only
// b's bundle counts, so that what one APIService trusts in addition holds for no other. The caller owns the result and
// adds its NextProtos. An error, always an *Error, means that no handshake could succeed now.
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
	if strings.Contains(name, ",") { // the name to send depends on the address
		name = ""
	}
	return &tls.Config{
		ServerName: name, MinVersion: tls.VersionTLS12, GetClientCertificate: t.cfg.ClientCertificate,
		// VerifyConnection does all that is skipped here, against roots that may change, and gives a reason.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   func(cs tls.ConnectionState) error { return s.handshake(cs.PeerCertificates) },
		// No ClientSessionCache: see the package's concurrency rule.
	}, nil
}

// Guard watches an open connection to b whose server presented chain, leaf first. lost has a value when the chain has
// expired: from then on the connection must take no new stream. It is closed when the APIService no longer trusts the
// chain, or is deleted: then watches must end within 5 s, too. If apiService is empty, b's trust counts: it does not
// end. lost is closed at once if the chain does not verify, so call Guard after the handshake. release ends the guard.
// It must be called when the connection closes, and may be called more than once.
func (t *Trust) Guard(
	apiService string, b *registry.Backend, chain []*x509.Certificate,
) (lost <-chan struct{}, release func()) {
	s, err := t.lookup(apiService, b)
	if err != nil {
		gone := make(chan struct{})
		close(gone)
		return gone, func() {}
	}
	return s.guard(chain)
}

// lookup finds the trust for dialling b for an APIService. It applies a table Run has not seen.
func (t *Trust) lookup(apiService string, b *registry.Backend) (*backend, error) {
	if table := t.cfg.Tables.Table(); table.Generation() > t.applied.Load() {
		t.apply(table.Generation(), table.Servers())
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
	return nil, refuse(reasonInvalidBundle, nil, "no APIService has the backend %s any more", b)
}

// apply takes the remote entries of a table, unless a newer table has been applied.
func (t *Trust) apply(generation uint64, entries []*registry.Entry) {
	defer t.logSaid()
	t.mu.Lock()
	defer t.mu.Unlock()
	if generation <= t.applied.Load() {
		return
	}
	refers := func(b *registry.Backend) bool { return b != nil && b.CAFrom != "" }
	for _, c := range latest.Diff(t.entries, entries) {
		was, is := cmp.Or(c.Old, &registry.Entry{}).Backend, cmp.Or(c.New, &registry.Entry{}).Backend
		if was != is && (refers(was) || refers(is)) { // not for a verdict: all referenced bundles are read again
			t.rewatch.Store(true)
		}
		if was != nil {
			t.drop(c.Old, c.New)
		}
		if is != nil {
			t.take(c.New)
		}
	}
	t.entries = entries
	t.applied.Store(generation) // after the maps: a goroutine that sees the generation must find its entries
}

func (t *Trust) take(e *registry.Entry) {
	s := t.backends[e.Name]
	if s == nil {
		s = t.newBackend(e.Name)
		t.backends[e.Name] = s
	}
	if e.Backend.Owner == "" {
		if t.shared[e.Backend] == nil {
			all := t.newBackend("")
			all.apply(e.Backend, 0, nil)
			t.shared[e.Backend] = all
		}
		t.shared[e.Backend].join(e.Name)
	}
	s.apply(e.Backend, e.Settings.CAOverlap, t.shared[e.Backend])
}

// drop ends the trust of an entry that left the table, and of its APIService if that has no remote.
func (t *Trust) drop(e, now *registry.Entry) {
	if e.Backend.Owner == "" {
		t.shared[e.Backend].leave(e.Name)
	}
	if now == nil || now.Backend == nil {
		t.backends[e.Name].end()
		delete(t.backends, e.Name)
		t.metrics.refusals.DeletePartialMatch(prometheus.Labels{"apiservice": e.Name}) // few have any
		t.metrics.reloads.DeleteLabelValues(e.Name, "success")
		t.metrics.reloads.DeleteLabelValues(e.Name, "failure")
	}
}

func (t *Trust) both() []*backend {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Values(t.backends)), maps.Values(t.shared))
}

func (t *Trust) all() []*backend {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.SortedFunc(maps.Values(t.backends), func(a, b *backend) int { return cmp.Compare(a.name, b.name) })
}

// localName stands for the local apiserver in metrics and status. No APIService can have it: their names have a dot.
const localName = "local-apiserver"

// LocalBundle sets the roots for verifying the local apiserver: the certificate-authority of the kubeconfig. Empty data
// means the system's roots, as before the first call. A bundle that is wholly or partly unreadable changes nothing: its
// file may be half-written. A removed CA is distrusted at once: the control plane's rotation has an overlap.
func (t *Trust) LocalBundle(data []byte) error {
	if _, err := bundle.Parse(data); err != nil && len(data) > 0 {
		return err
	}
	b := t.local
	defer t.logSaid()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source = "kubeconfig"
	b.takeLocked(b.readLocked(data, nil), time.Now())
	b.recheckLocked(time.Now(), true)
	return nil
}

// LocalTLS returns a client configuration for dialling the local apiserver, without a server name. The caller sets the
// name, the client certificate and NextProtos. It has the current roots: use it for one dial.
func (t *Trust) LocalTLS() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS12,
		RootCAs:          t.local.current.Load().current.pool, // there always are some: only readable ones replace them
		VerifyConnection: func(cs tls.ConnectionState) error { return t.local.handshake(cs.PeerCertificates) },
	}
}

// LocalGuard is Guard for a connection to the local apiserver.
func (t *Trust) LocalGuard(chain []*x509.Certificate) (lost <-chan struct{}, release func()) {
	return t.local.guard(chain)
}
