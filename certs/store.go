package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/certs/trust"
)

// Config says where everything comes from. The zero Config serves a self-signed pair and trusts no client certificate.
type Config struct {
	// Serving is the pair for clients that ask for no name of SNI. Zero: the first of SNI, or a self-signed pair when there is none either.
	Serving PairSource
	// SNI are pairs for the names that clients ask for. Nil: Serving answers to all.
	SNI []PairSource
	// MinVersion of TLS and CipherSuites for TLS 1.2. Zero: TLS 1.2 and Go's choice.
	MinVersion uint16
	// CipherSuites are for TLS 1.2. Nil: Go's choice.
	CipherSuites []uint16
	// HTTP1 offers clients HTTP/1.1 alone. False: HTTP/2 too.
	HTTP1 bool

	// ClientCA is the file of the bundle that vouches for users. Empty: no certificate makes a user, unless the ConfigMap is trusted.
	ClientCA string
	// RequestHeaderCA is the file of the bundle that vouches for front proxies. Empty: there are none, unless the ConfigMap is trusted.
	RequestHeaderCA string
	// AllowedNames are the common names that may be front proxies. Empty: all that RequestHeaderCA signed, or what a trusted ConfigMap says.
	AllowedNames []string
	// ConfigMap is the cluster's authentication ConfigMap, read for its header names. Zero: it is not read.
	ConfigMap trust.Ref
	// TrustConfigMap takes its CAs too, where ClientCA or RequestHeaderCA is empty. False: only files give CAs, because kube-apiserver never takes a CA out of it.
	TrustConfigMap bool

	// ProxyClient is the pair that this process presents to the local apiserver and to backends. Zero: none.
	ProxyClient PairSource
	// Files are further files to follow, such as a kubeconfig. Nil: none.
	Files []File

	// Watch follows the ConfigMap. Required with one.
	Watch trust.Watch
	// Logger gets reloads. Nil discards.
	Logger *slog.Logger
	// Metrics registers the metrics. Nil: unregistered.
	Metrics prometheus.Registerer
}

// File is a file of somebody else's that is followed with the same care.
type File struct {
	// Use names it in status and metrics: "kubeconfig".
	Use string
	// Path is the file.
	Path string
	// Take parses the content and puts it in force. After an error the former content counts. New calls it first, later one goroutine of Run.
	Take func(data []byte) error
}

// Store holds the certificates of this process. Everything works from New on; it needs Run to follow its sources.
type Store struct {
	cfg      Config
	logger   *slog.Logger
	followed []*followed
	reloads  *prometheus.CounterVec

	pair    *Pair
	sni     []*Pair
	proxy   *Pair
	clients *Clients
	serving atomic.Pointer[tls.Config]

	// mu orders the changes of serving.
	mu sync.Mutex
}

// New reads every file once; one that cannot be read or parsed is an error, because at the start there is no last good value. The ConfigMap is read by Run.
func New(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, logger: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), pair: newPair(), proxy: newPair(), reloads: newReloads()}
	s.clients = newClients(cfg, s.rebuild)
	if err := s.sources(); err != nil {
		return nil, err
	}
	s.rebuild()
	for _, f := range s.followed {
		if f.whole != nil {
			continue
		}
		if _, err := f.load(); err != nil {
			return nil, err
		}
	}
	if cfg.TrustConfigMap {
		s.logger.Warn("the authentication ConfigMap is trusted: kube-apiserver never takes a CA out of it, so a CA that was removed from its flags stays trusted here",
			"configmap", cfg.ConfigMap.Namespace+"/"+cfg.ConfigMap.Name)
	}
	return s, s.register(cfg.Metrics)
}

func newClients(cfg Config, changed func()) *Clients {
	c := &Clients{allowed: cfg.AllowedNames, changed: changed}
	c.files.client, c.files.proxy = cfg.ClientCA != "", cfg.RequestHeaderCA != ""
	c.current.Store(&clientTrust{})
	return c
}

// sources lists what is to be followed.
func (s *Store) sources() error {
	c := s.cfg
	s.follow("serving", c.Serving, s.pair, s.rebuild)
	if c.Serving.Cert == "" && len(c.SNI) == 0 {
		cert, key, err := selfSigned()
		if err != nil {
			return fmt.Errorf("making self-signed pair: %w", err)
		}
		s.followed = append(s.followed, &followed{use: "serving", source: "inline", given: [][]byte{cert, key}, held: s.pair.leaf, take: func(data [][]byte) error {
			defer s.rebuild()
			return s.pair.take(data)
		}})
		s.logger.Warn("serving a self-signed certificate, because none was given")
	}
	for _, src := range c.SNI {
		p := newPair()
		s.sni = append(s.sni, p)
		s.follow("sni", src, p, s.rebuild)
	}
	s.follow("proxy-client", c.ProxyClient, s.proxy, func() {})
	client := func() []*x509.Certificate { return s.clients.current.Load().client }
	proxy := func() []*x509.Certificate { return s.clients.current.Load().proxy }
	if c.ClientCA != "" {
		s.followed = append(s.followed, &followed{use: "client-ca", source: c.ClientCA, files: []string{c.ClientCA}, take: s.clients.takeClient, held: client})
	}
	if c.RequestHeaderCA != "" {
		s.followed = append(s.followed, &followed{use: "requestheader-ca", source: c.RequestHeaderCA, files: []string{c.RequestHeaderCA}, take: s.clients.takeProxy, held: proxy})
	}
	for _, f := range c.Files {
		s.followed = append(s.followed, &followed{use: f.Use, source: f.Path, files: []string{f.Path}, take: func(data [][]byte) error { return f.Take(data[0]) }})
	}
	switch zero := c.ConfigMap == (trust.Ref{}); {
	case zero && c.TrustConfigMap:
		return errors.New("trusting the authentication ConfigMap: none is named")
	case !zero && c.Watch == nil:
		return errors.New("following the authentication ConfigMap: Watch is required")
	case !zero:
		s.followed = append(s.followed, &followed{
			use: "authentication-configmap", source: "ConfigMap " + c.ConfigMap.Namespace + "/" + c.ConfigMap.Name, whole: s.clients.takeConfigMap(c.TrustConfigMap),
			held: s.heldByConfigMap,
		})
	}
	return nil
}

func (s *Store) follow(use string, src PairSource, p *Pair, then func()) {
	if src.Cert == "" && src.Key == "" {
		return
	}
	s.followed = append(s.followed, &followed{use: use, source: src.Cert, files: []string{src.Cert, src.Key}, held: p.leaf, take: func(data [][]byte) error {
		if err := p.take(data); err != nil {
			return err
		}
		then()
		return nil
	}})
}

// Clients verifies what clients present.
func (s *Store) Clients() *Clients { return s.clients }

// ProxyClient is the pair that this process presents to the local apiserver and to backends; without one configured it is empty.
func (s *Store) ProxyClient() *Pair { return s.proxy }

// Run follows every source until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range s.followed {
		if f.whole != nil {
			wg.Go(func() {
				s.cfg.Watch.Keep(ctx, s.cfg.ConfigMap, s.logger, func(data map[string][]byte, err error) { s.report(f)(f.deliver(data, err)) })
			})
		}
	}
	wg.Go(func() { s.runFiles(ctx) })
	wg.Wait()
	return ctx.Err()
}

// report logs and counts how a reading ended, once for each change.
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
