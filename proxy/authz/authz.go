// Package authz authorizes users by SubjectAccessReviews of the local apiserver, with a cache.
//
// Cached reads the cache without allocating; on a miss Authorize asks, once for all equal questions. Two short-cuts
// come first, as upstream: system:masters may do all, and some paths are open. A failed review refuses.
//
// The concurrency rule: an Authorizer is safe for concurrent use, and no lock is held during I/O.
// The only goroutines are SubjectAccessReviews, each ended by its timeout.
//
// This package does not authenticate (proxy/authn does), does not choose which requests are
// authorized here rather than by the local apiserver, and writes no responses.
package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
)

// Config configures an Authorizer (makeAuthz in cmd/fairlead). The zero one allows system:masters and health paths.
type Config struct {
	// Review decides everything but the short-cuts; see SubjectAccessReview. Nil refuses everything else.
	Review func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error)
	// Generation changes whenever Review's result may change, which drops cached results. If nil, they only expire.
	Generation func() uint64
	// Ready reports whether Review's server has read its rules: a kube-apiserver that has just started refuses requests
	// until then. While Ready returns false, a refusal is an error. Nil means always ready.
	Ready func() bool
	// LeaveRemotes allows every request with Attributes.Remote, so that the backend decides
	// (--authorization-mode=backend). If false, they are reviewed.
	LeaveRemotes bool
	// AllowPaths are open to all; a trailing * makes one a prefix. Nil means /healthz, /readyz and
	// /livez, as upstream. Empty but not nil means none.
	AllowPaths []string
	// AllowTTL and DenyTTL are how long a positive and a negative result are cached. Zero means 10
	// s, as in k8s.io/apiserver's delegating options. Negative means no cache.
	AllowTTL, DenyTTL time.Duration
	metric.Sinks      // reviews, of which those that panicked are logged
}

// Attributes are the question: a user and its request.
type Attributes struct {
	User user.Info // sends the request. Nil is refused
	// RequestInfo has the query's selectors, unparsed. Of a path, only the verb (the method in
	// lower case) and the path (decoded) count; of a resource, the path does not.
	request.RequestInfo
	// Now is the time, so that the clock is read once per request. If zero, it is read. It is no part of the question.
	Now time.Time
	// Remote says that the request goes to an extension server, which can authorize it: for Config.LeaveRemotes.
	Remote bool
}

// Decision is the result. The zero Decision refuses.
type Decision struct {
	Allowed bool   // whether the user may do it
	Reason  string // the authorizer's, for the message of the 403 and the log. It is often empty
}

// Authorizer authorizes requests. Make one with New.
type Authorizer struct {
	cfg     Config
	open    func(path string) bool // open to all
	cache   *cache
	flight  singleflight.Group
	queue   *bound.Queue // of reviews, by user
	hits    prometheus.Counter
	reviews *prometheus.CounterVec // by result
}

const (
	// maxReviews limits the concurrent SubjectAccessReviews: at a millisecond or two, tens of thousands a second.
	maxReviews = 64
	// maxWaiting limits the running and waiting ones, with a quarter for one user; more are refused at once.
	maxWaiting    = 4096
	reviewTimeout = 10 * time.Second // limits one SubjectAccessReview with its retries, as upstream
	// maxCached is the size of attributes from which on no result is cached, as upstream: callers could fill any.
	maxCached = 10000
	// maxAsked: above this size nobody is asked. As JSON a caller's megabyte may be six, several times in each review.
	maxAsked = 16 << 10
)

var errNotReady = errors.New(
	"authorizing: refused by a local apiserver that is not ready, which may not have read its rules yet")

// New checks a Config and returns an Authorizer for it.
func New(cfg Config) (*Authorizer, error) {
	cfg.AllowTTL, cfg.DenyTTL = cmp.Or(cfg.AllowTTL, 10*time.Second), cmp.Or(cfg.DenyTTL, 10*time.Second)
	cfg.Logger = cfg.Log()
	if cfg.AllowPaths == nil {
		cfg.AllowPaths = []string{"/healthz", "/readyz", "/livez"}
	}
	if cfg.Generation == nil {
		cfg.Generation = func() uint64 { return 0 }
	}
	paths, err := path.NewAuthorizer(cfg.AllowPaths)
	if err != nil {
		return nil, fmt.Errorf("reading always-allow paths: %w", err)
	}
	z := &Authorizer{
		cfg: cfg,
		open: func(path string) bool {
			a := authorizer.AttributesRecord{Path: path}
			d, _, _ := paths.Authorize(context.Background(), a) //fairlead:boundary it compares paths
			return d == authorizer.DecisionAllow
		},
		cache: newCache(cfg.Generation),
		queue: bound.NewQueue(maxReviews, maxWaiting),
		hits:  metric.Count("fairlead_authorization_cache_hits_total", "Authorization decisions taken from the cache."),
		reviews: metric.Counter("fairlead_authorization_reviews_total",
			"SubjectAccessReviews by result: allowed, denied, error, or busy (too many under way).",
			"result", "allowed", "denied", "error", "busy"),
	}
	metric.Register(cfg.Metrics, z.hits, z.reviews)
	return z, nil
}

// shortcut reports whether all is allowed, or, without a user, refused: by what needs no cache, review or path.
func (z *Authorizer) shortcut(a *Attributes) bool {
	return a.User == nil || z.cfg.LeaveRemotes && a.Remote ||
		slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup)
}

// Cached decides without I/O, if possible. It keeps nothing of a.
func (z *Authorizer) Cached(a *Attributes) (Decision, bool) {
	if z.shortcut(a) {
		return Decision{Allowed: a.User != nil}, true
	}
	long := a.size() > maxAsked // the cache has none, and its key would be as long
	if !long {
		if d, ok := z.cache.get(a); ok {
			z.hits.Inc()
			return d, true
		}
	}
	// The cache never has an open path, and is asked first because upstream's comparison allocates.
	open := !a.IsResourceRequest && z.open(a.Path)
	return Decision{Allowed: open}, open || z.cfg.Review == nil || long
}

// Authorize decides, and asks the local apiserver if necessary. An error is a failed review: refuse the request.
func (z *Authorizer) Authorize(ctx context.Context, a *Attributes) (Decision, error) {
	if a.User == nil {
		return Decision{}, errors.New("authorizing: there is no user")
	}
	if d, ok := z.Cached(a); ok {
		return d, nil
	}
	if err := ctx.Err(); err != nil {
		return Decision{}, fmt.Errorf("authorizing: %w", err)
	}
	own, key := *a, string(a.appendKey(nil))
	for _, text := range []*string{&own.Verb, &own.APIGroup, &own.APIVersion, &own.Resource, &own.Subresource,
		&own.Namespace, &own.Name, &own.FieldSelector, &own.LabelSelector, &own.Path} {
		// A review may outlive its request, of a megabyte. Only a resource's path may be longer: it is not asked about.
		*text = strings.Clone((*text)[:min(len(*text), maxAsked)])
	}
	//nolint:contextcheck // callers share it: it must not end, nor use a recorder or a span, with the first of them
	ch := z.flight.DoChan(key, func() (any, error) { return z.review(&own, key) })
	select {
	case r := <-ch:
		d, _ := r.Val.(Decision)
		return d, r.Err
	case <-ctx.Done():
		return Decision{}, fmt.Errorf("authorizing: %w", ctx.Err())
	}
}

// review asks on a goroutine of singleflight's, where a panic would end the process.
func (z *Authorizer) review(a *Attributes, key string) (d Decision, err error) {
	defer func() {
		if v := recover(); v != nil {
			z.cfg.Logger.Error("authorizing panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			z.reviews.WithLabelValues("error").Inc()
			d, err = Decision{}, errors.New("authorizing: the review panicked")
		}
	}()
	if d, ok := z.cache.get(a); ok { // the previous review may have ended between our look-up and here
		return d, nil
	}
	// Both are taken before the call, because the answer may be as old as that.
	asked, generation := time.Now(), z.cfg.Generation()
	d, err = z.ask(context.Background(), a.record())
	if err == nil && a.size() < maxCached {
		ttl := z.cfg.DenyTTL
		if d.Allowed {
			ttl = z.cfg.AllowTTL
		}
		z.cache.put(key, d, asked.Add(ttl), generation)
	}
	return d, err
}

func (z *Authorizer) ask(ctx context.Context, a authorizer.Attributes) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	leave, err := z.queue.Enter(ctx, bound.Source{User: a.GetUser().GetName()}, 1)
	if err != nil {
		z.reviews.WithLabelValues("busy").Inc()
		return Decision{}, fmt.Errorf("authorizing: %w", bound.ErrFull)
	}
	defer leave()
	decision, reason, err := z.cfg.Review(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow: // as upstream, an allow counts even with an error: RBAC may fail in part
		z.reviews.WithLabelValues("allowed").Inc()
		return Decision{Allowed: true, Reason: reason}, nil
	case err != nil:
		z.reviews.WithLabelValues("error").Inc()
		return Decision{Reason: reason}, fmt.Errorf("authorizing: %w", err)
	case z.cfg.Ready != nil && !z.cfg.Ready():
		z.reviews.WithLabelValues("error").Inc()
		return Decision{}, errNotReady
	}
	z.reviews.WithLabelValues("denied").Inc()
	return Decision{Reason: reason}, nil
}
