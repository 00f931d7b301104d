// Package certs holds this process's certificates, and the CAs that verify its clients. Each follows its source.
//
// A Store has three sides. TLS is the server's: the serving pair, the SNI pairs, and the CAs that the server names to
// clients. Clients verifies the certificates of clients: against the client CA (then the leaf is a user) and against
// the request-header CA (then the peer is a front proxy that may assert X-Remote-*). ProxyClient is the pair that this
// process presents to the local apiserver and to backends. The child package trust verifies backends.
//
// Every source is read in the same way: parse all of it, check it, then swap. After an error the
// last good value stays, and log, metric and Status say so. The one exception is the cluster's
// authentication ConfigMap: its deletion ends the trust that came from it.
//
// The concurrency rule: the values in force are immutable, behind an atomic pointer, so nothing
// waits for a reload. Store.Run owns every goroutine. Before Run everything is as New read it.
//
// This package authenticates nobody (proxy/authn does, and caches what Clients returned per
// connection and Generation). It reads objects only through Config.Watch.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// Config names all sources (makeTrust in cmd/fairlead). The zero Config serves and trusts no client.
type Config struct {
	Serving      PairSource    // the pair for clients that send no SNI name, or an unknown one. TLS needs it
	SNI          []PairSource  // pairs for names that clients send. Nil means that Serving is used for all
	MinVersion   uint16        // the least version of TLS. Zero means TLS 1.2
	CipherSuites []uint16      // for TLS 1.2. Nil means Go's choice
	Curves       []tls.CurveID // the key exchanges that clients may use. Nil means Go's choice
	HTTP1        bool          // offers clients HTTP/1.1 alone. False means HTTP/2 too

	// ClientCA is the file of the bundle that verifies users. Empty means that no certificate
	// authenticates a user, unless the ConfigMap is trusted.
	ClientCA string
	// RequestHeaderCA is the file of the bundle that verifies front proxies. Empty: none, or a trusted ConfigMap's.
	RequestHeaderCA string
	// AllowedNames are the common names that front proxies may have. Empty means all that
	// RequestHeaderCA signed, or those of a trusted ConfigMap.
	AllowedNames []string
	// ConfigMap is the cluster's authentication ConfigMap, read for its header names. Zero means that it is not read.
	ConfigMap types.NamespacedName
	// TrustConfigMap takes its CAs too, where ClientCA or RequestHeaderCA is empty. False means
	// that only files give CAs, because kube-apiserver never removes a CA from the ConfigMap.
	TrustConfigMap bool

	ProxyClient PairSource // presented to the local apiserver and to backends. Zero means none
	Files       []File     // further files to follow, such as a kubeconfig. Nil means none

	Watch        trust.Watch // follows the ConfigMap. It is required if ConfigMap is set
	metric.Sinks             // reloads
}

// File is a file of another package that is followed with the same care.
type File struct {
	Use  string // names it in status and metrics: "kubeconfig"
	Path string // the file. Empty: there is none
	// Take parses the content and puts it in force. After an error the former stays. New calls it first, later Run.
	Take func(data []byte) error
	Held func() []*x509.Certificate // returns the chain in it that is in force. Nil means that it has none
	Key  string                     // of a pair: the file of the private key
	Pair *Pair                      // takes it, instead of Take. Nil: it is no pair
}

// Store holds the certificates of this process. It needs Run only to follow its sources.
type Store struct {
	cfg      Config
	logger   *slog.Logger
	followed []*followed
	reloads  *prometheus.CounterVec

	pair    *Pair
	sni     []*Pair
	proxy   *Pair
	clients *Clients
	serving atomic.Pointer[tls.Config] // made by rebuild
	mu      sync.Mutex                 // orders the changes of serving
}

// New reads every file once. A bad one is an error: there is no last good value yet. Run reads the ConfigMap.
func New(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, logger: cfg.Log(), pair: NewPair(), proxy: NewPair()}
	s.clients = newClients(cfg, s.rebuild)
	s.sources()
	for _, f := range s.followed {
		if f.take != nil {
			if _, err := f.load(); err != nil {
				return nil, err
			}
		}
	}
	if cfg.TrustConfigMap {
		s.logger.Warn("the authentication ConfigMap is trusted: kube-apiserver never takes a CA out of it, "+
			"so a CA that was removed from its flags stays trusted here", "configmap", cfg.ConfigMap.String())
	}
	s.register(cfg.Metrics)
	return s, nil
}

func newClients(cfg Config, changed func()) *Clients {
	c := &Clients{cfg: cfg, changed: changed}
	c.known.Store(cfg.ConfigMap == (types.NamespacedName{}))
	c.current.Store(&clientTrust{})
	c.cluster.Store(&clientTrust{})
	return c
}

func (s *Store) sources() {
	c := s.cfg
	s.follow("serving", c.Serving, s.pair, s.rebuild)
	for _, src := range c.SNI {
		p := NewPair(src.Names...)
		s.sni = append(s.sni, p)
		s.follow("sni", src, p, s.rebuild)
	}
	s.follow("proxy-client", c.ProxyClient, s.proxy, func() {})
	s.followCA("client-ca", c.ClientCA, func(t *clientTrust) *[]*x509.Certificate { return &t.client })
	s.followCA("requestheader-ca", c.RequestHeaderCA, func(t *clientTrust) *[]*x509.Certificate { return &t.proxy })
	for _, f := range c.Files {
		switch {
		case f.Pair != nil:
			s.follow(f.Use, PairSource{Cert: f.Path, Key: f.Key}, f.Pair, func() {})
		case f.Path != "":
			s.followed = append(s.followed, &followed{
				use: f.Use, source: f.Path, files: []string{f.Path}, held: f.Held,
				take: func(data [][]byte) error { return f.Take(data[0]) },
			})
		}
	}
	if ref := c.ConfigMap; ref != (types.NamespacedName{}) {
		s.followed = append(s.followed, &followed{
			use: "authentication-configmap", source: "ConfigMap " + ref.String(), whole: s.clients.takeConfigMap,
		})
	}
}

func (s *Store) follow(use string, src PairSource, p *Pair, then func()) {
	if src.Cert == "" && src.Key == "" {
		return
	}
	s.followed = append(s.followed, &followed{
		use: use, source: src.Cert, files: []string{src.Cert, src.Key},
		held: func() []*x509.Certificate {
			chain, _ := p.Chain() // take has parsed it
			return trust.Path(chain)
		},
		take: func(data [][]byte) error {
			defer then()
			return p.take(data)
		},
	})
}

// followCA follows the file of a bundle that verifies clients. Without one it shows the bundle that
// the ConfigMap gives, alone: an expired one must not hide behind the other.
func (s *Store) followCA(use, file string, of func(*clientTrust) *[]*x509.Certificate) {
	f := &followed{
		use: use, source: "ConfigMap " + s.cfg.ConfigMap.String(),
		held: func() []*x509.Certificate { return *of(s.clients.current.Load()) },
	}
	if file != "" {
		f.source, f.files, f.take = file, []string{file}, func(data [][]byte) error {
			certs, err := bundle.Parse(data[0])
			if err != nil {
				return err
			}
			return s.clients.update(func(t *clientTrust) { *of(t) = certs })
		}
	}
	if file != "" || s.cfg.TrustConfigMap {
		s.followed = append(s.followed, f)
	}
}

// Clients returns the verifier of clients' certificates.
func (s *Store) Clients() *Clients { return s.clients }

// ProxyClient returns the pair that this process presents to the local apiserver and backends; empty if there is none.
func (s *Store) ProxyClient() *Pair { return s.proxy }

// Run follows every source until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range s.followed {
		if f.whole != nil {
			wg.Go(func() {
				_ = s.cfg.Watch(ctx, s.cfg.ConfigMap, func(data map[string][]byte, err error) {
					s.report(f)(f.deliver(data, err))
				}) // that of ctx
			})
		}
	}
	wg.Go(func() { s.runFiles(ctx) })
	wg.Wait()
	return ctx.Err()
}

// report logs and counts the outcome of a read, once for each change.
func (s *Store) report(f *followed) func(changed bool, err error) {
	return func(changed bool, err error) {
		switch {
		case !changed:
		case err != nil:
			s.reloads.WithLabelValues(f.use, f.source, "failure").Inc()
			s.logger.Warn("reload refused, keeping the last good one", "use", f.use, "source", f.source, "err", err)
		default:
			s.reloads.WithLabelValues(f.use, f.source, "success").Inc()
			s.logger.Info("reloaded", "use", f.use, "source", f.source)
		}
	}
}
