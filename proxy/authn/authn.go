// Package authn authenticates callers, and decides which identity is sent to which side.
//
// Read parses the credentials of a request's head. It uses what this process can verify alone: the peer's certificate
// against the request-header CA and the client CA, once per connection and CA generation. It does no I/O. Only a bearer
// token may need I/O: Cached looks it up, Review asks the local apiserver (TokenReview). The order is that of
// kube-apiserver's union: request headers, certificate, token. All are tried and the first success wins. A request is
// refused only if one failed and none succeeded, and is anonymous only if it has no credentials. A differential test
// compares it with k8s.io/apiserver's own authenticators.
//
// Strip removes identity and secrets from a forwarded request; Assert adds the asserted one. Strip, and drop the fields
// that a Connection header lists, before you add: a client could list our header there, to have it dropped.
//
// The concurrency rule: an Authenticator and a Conn are safe for concurrent use; no lock is held during I/O; every
// returned user.Info is read-only. The only goroutines are TokenReviews, each ended by its timeout.
//
// This package has no CA (VerifyClient and VerifyFrontProxy do), dials nothing (Config.Review
// does), does not authorize (proxy/authz does) and writes no responses.
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

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// ErrUnauthenticated is the cause of every refusal that is the caller's fault, answered with 401.
var ErrUnauthenticated = errors.New("unauthenticated")

// Config configures an Authenticator (makeAuthn in cmd/fairlead). The zero Config refuses all but anonymous requests.
type Config struct {
	// VerifyClient verifies a peer's certificates as certs.Clients.VerifyUser. No chain and no error mean that there is
	// no client CA, so no opinion. Nil means that client certificates are ignored.
	VerifyClient func(peer []*x509.Certificate) ([][]*x509.Certificate, error)
	// VerifyFrontProxy does the same with the request-header CA, and checks the leaf's name against
	// the allowed names. Nil means that no front proxy is trusted.
	VerifyFrontProxy func(peer []*x509.Certificate) ([][]*x509.Certificate, error)
	// Generation changes whenever either verification's result may: with other CAs or allowed names. Nil: never.
	Generation func() uint64
	// Review authenticates a token; see TokenReview. If nil, tokens are refused wherever Fairlead must know the caller.
	Review           func(ctx context.Context, token string) (*authenticator.Response, bool, error)
	ReviewGeneration func() uint64 // changes when Review's results may, which drops cached ones. Nil: they only expire
	// Impersonate returns the credential of this process as an Authorization value. It is for a local apiserver that
	// gets users by Impersonate-*. Empty means that the connection's certificate is the credential. It does no I/O. If
	// Impersonate is nil, the local apiserver gets users by X-Remote-*.
	Impersonate func() string
	// Issued reports whether a token claims an issuer whose tokens Review verifies itself. Such a
	// token is never forwarded, valid or not. Nil means that there is none.
	Issued func(token string) bool
	// RefuseUsers and RefuseGroups must not be impersonated; a trailing * makes a name a prefix. They are users whom
	// the cluster would refuse anyway, and identities of this process itself, which have its rights. Empty means none.
	RefuseUsers, RefuseGroups []string
	// GroupPrefixes are of the groups with which Impersonate's server gets users; empty means all. Only that server
	// gets fewer, because it authorizes each: whoever refuses by group here sees all. Those of Kubernetes (system:)
	// always pass: without system:unauthenticated it would add system:authenticated, without any a ServiceAccount's.
	GroupPrefixes []string
	// RequestHeaders are the header fields in which a verified front proxy asserts its user. Zero means X-Remote-User,
	// X-Remote-Group and X-Remote-Extra-, as kube-apiserver's flags do. There is no field for the UID then: a front
	// proxy that does not know the field would let its clients set it.
	RequestHeaders HeaderNames
	ReadTarget     bool // read Target's fields instead, if there are any: VerifyFrontProxy's CA is from there, too
	// Target returns the names that the receiver trusts (the cluster's ConfigMap). They must be immutable; another
	// pointer means other names. If Target or the pointer is nil, they are X-Remote-User, X-Remote-Uid, X-Remote-Group
	// and X-Remote-Extra-, as kube-aggregator sends. Until known is true no user is asserted: a client's field that the
	// receiver trusts might not be stripped.
	Target         func() (names *HeaderNames, known bool)
	Anonymous      bool     // allow requests without credentials as system:anonymous; else they are refused like tokens
	AnonymousPaths []string // limits Anonymous to these exact paths (--authentication-config), if any
	// TokenTTL is how long the result of a TokenReview is cached, positive or negative. Zero means 10 s. Negative means
	// no cache. For tokens of Issued it is at most 10 s, as at kube-apiserver: they may expire meanwhile.
	TokenTTL     time.Duration
	metric.Sinks // reviews, of which those that panicked are logged
}

// Authenticator authenticates callers. Make one with New.
type Authenticator struct {
	cfg     Config
	read    HeaderNames // Config.RequestHeaders, in lower case
	names   atomic.Pointer[nameSet]
	as      *nameSet // for Impersonate
	nobody  *identity
	known   *cache[*identity]
	refused *cache[struct{}]
	proven  *cache[string] // Token.payer
	flight  singleflight.Group
	began   atomic.Pointer[time.Time] // when the last review did that the local apiserver answered
	hits    prometheus.Counter
	reviews *prometheus.CounterVec // by result
	// strangers, regulars and issued have waiting reviews.
	strangers, regulars, issued *bound.Queue
}

// New checks a Config and returns an Authenticator for it.
func New(cfg Config) (*Authenticator, error) {
	cfg.TokenTTL = cmp.Or(cfg.TokenTTL, defaultTTL)
	cfg.Logger = cfg.Log()
	for _, generation := range []*func() uint64{&cfg.Generation, &cfg.ReviewGeneration} {
		if *generation == nil {
			*generation = func() uint64 { return 0 }
		}
	}
	if n := &cfg.RequestHeaders; len(n.Username)+len(n.UID)+len(n.Group)+len(n.ExtraPrefix) == 0 {
		*n = HeaderNames{[]string{remoteUser}, nil, []string{remoteGroup}, []string{remoteExtra}}
	}
	read, err := cfg.RequestHeaders.lower()
	if err == nil && len(read.Username) == 0 {
		err = errors.New("there is none for the user")
	}
	if err != nil {
		return nil, fmt.Errorf("reading request header names: %w", err)
	}
	a := &Authenticator{
		cfg:  cfg,
		read: read,
		as: &nameSet{
			user: "impersonate-user", uid: "impersonate-uid", group: "impersonate-group", extra: "impersonate-extra-",
			completes: true, prefixes: cfg.GroupPrefixes,
		},
		nobody: &identity{DefaultInfo: user.DefaultInfo{
			Name: user.Anonymous, Groups: []string{user.AllUnauthenticated},
		}},
		// A hundred thousand tokens are more than a cluster of Kubernetes' largest supported size uses. With a service
		// account's usual 1.2 KB they take 120 MB, shared by both caches. Only valid tokens are kept here.
		known:  newCache[*identity](memo.Config{Entries: 1 << 18, Bytes: 160 << 20, Generation: cfg.ReviewGeneration}),
		proven: newCache[string](memo.Config{Entries: 1 << 18, Bytes: 160 << 20}),
		// Invalid tokens have a cache of their own, so that a flood of them evicts no valid ones.
		refused: newCache[struct{}](memo.Config{Entries: 4096, Bytes: 8 << 20, Generation: cfg.ReviewGeneration}),
		hits: metric.Count("fairlead_authentication_cache_hits_total",
			"Bearer tokens whose owner, or whose invalidity, was known without asking."),
		reviews: metric.Counter("fairlead_authentication_reviews_total",
			"TokenReviews by result: authenticated, refused, error, or busy (too many under way).",
			"result", "authenticated", "refused", "error", "busy"),
		strangers: bound.NewQueue(maxReviews, maxWaiting), regulars: bound.NewQueue(maxReviews, maxWaiting),
		issued: bound.NewQueue(maxReviews, maxWaiting),
	}
	if s := a.nameSet(); s.err != nil && s.known {
		return nil, fmt.Errorf("reading the names that the target trusts: %w", s.err)
	}
	metric.Register(cfg.Metrics, a.hits, a.reviews)
	return a, nil
}
