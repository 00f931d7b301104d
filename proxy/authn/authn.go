package authn

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

// ErrUnauthenticated is the cause of every refusal that is the caller's own fault. It is answered with 401.
var ErrUnauthenticated = errors.New("unauthenticated")

// Config is what an Authenticator needs. The zero Config knows nobody: all but anonymous requests are refused.
type Config struct {
	// VerifyClient verifies a peer's certificates (leaf first) against the client CA and returns the verified chains. No chain and no error means that
	// there is no client CA at present: no opinion. Nil: client certificates are not looked at.
	VerifyClient func(peer []*x509.Certificate) ([][]*x509.Certificate, error)
	// VerifyFrontProxy does the same against the request-header CA, and checks the leaf's name against the allowed ones. Nil: no front proxy is trusted.
	VerifyFrontProxy func(peer []*x509.Certificate) ([][]*x509.Certificate, error)
	// Generation changes whenever either verification might answer differently: another CA, other allowed names. Nil: they never change.
	Generation func() uint64
	// Review authenticates a token; see TokenReview. Nil: no token is known, so wherever Fairlead itself must know the caller a token is refused.
	Review func(ctx context.Context, token string) (*authenticator.Response, bool, error)
	// ReviewGeneration changes whenever Review might answer differently, and ends the answers that are kept. Nil: only time does.
	ReviewGeneration func() uint64
	// RequestHeaders are the header fields that a verified front proxy asserts its user in. Zero: X-Remote-User, X-Remote-Group and X-Remote-Extra-, but no
	// field for the UID, as kube-apiserver's flags have it: a front proxy that does not know of the field would let its own clients set it.
	RequestHeaders HeaderNames
	// Target returns the names that the receiving side trusts (the cluster's ConfigMap). The value must not be changed once returned; another pointer means
	// that the names changed. Nil, or a nil result: X-Remote-User, X-Remote-Uid, X-Remote-Group and X-Remote-Extra-, what kube-aggregator sends.
	Target func() *HeaderNames
	// Anonymous lets a request that presents nothing pass as system:anonymous. False: it is refused wherever Fairlead must know the caller.
	Anonymous bool
	// AnonymousPaths narrows Anonymous to these exact paths (--authentication-config). Empty: every path.
	AnonymousPaths []string
	// TokenTTL is how long a TokenReview's answer is kept, yes or no. Zero: 10 s, as k8s.io/apiserver's delegating options. Negative: not at all.
	TokenTTL time.Duration
	// ProvenTTL is how long a token counts as proven after the local apiserver last accepted it. Zero: 1 min, so that a client that asks every few
	// seconds stays proven, and a stolen list of dead tokens is worth at most one refusal each.
	ProvenTTL time.Duration
	// Metrics registers the counters. Nil: they are not registered.
	Metrics prometheus.Registerer
}

// Authenticator says who is asking. Make one with New.
type Authenticator struct {
	cfg     Config
	read    HeaderNames
	names   atomic.Pointer[nameSet]
	paths   map[string]bool
	nobody  *identity
	known   *cache[*identity]
	refused *cache[struct{}]
	proven  *cache[struct{}]
	flight  singleflight.Group
	metrics metrics

	strangers, regulars *bound.Queue // of reviews
}

// New checks a Config and returns an Authenticator for it.
func New(cfg Config) (*Authenticator, error) {
	cfg.TokenTTL = cmp.Or(cfg.TokenTTL, 10*time.Second)
	cfg.ProvenTTL = cmp.Or(cfg.ProvenTTL, time.Minute)
	for _, generation := range []*func() uint64{&cfg.Generation, &cfg.ReviewGeneration} {
		if *generation == nil {
			*generation = func() uint64 { return 0 }
		}
	}
	read, err := newReadNames(cfg.RequestHeaders)
	if err != nil {
		return nil, fmt.Errorf("reading request header names: %w", err)
	}
	a := &Authenticator{
		cfg:    cfg,
		read:   read,
		paths:  map[string]bool{},
		nobody: &identity{DefaultInfo: user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}},
		// A hundred thousand tokens, which is more than a cluster of Kubernetes' largest supported size has in use; of a service account's usual 1.2 KB they
		// take 120 MB, once for both caches. Only good tokens are kept here.
		known:  newCache[*identity](memo.Config{Entries: 1 << 18, Bytes: 160 << 20, Generation: cfg.ReviewGeneration}),
		proven: newCache[struct{}](memo.Config{Entries: 1 << 18, Bytes: 160 << 20}),
		// Bad tokens are kept apart, or a flood of them would push the good ones out.
		refused: newCache[struct{}](memo.Config{Entries: 4096, Bytes: 8 << 20, Generation: cfg.ReviewGeneration}),
		metrics: newMetrics(cfg.Metrics),

		strangers: bound.NewQueue(maxReviews, maxWaiting), regulars: bound.NewQueue(maxReviews, maxWaiting),
	}
	for _, p := range cfg.AnonymousPaths {
		a.paths[p] = true
	}
	if err := a.nameSet().err; err != nil {
		return nil, fmt.Errorf("reading the names that the target trusts: %w", err)
	}
	return a, nil
}
