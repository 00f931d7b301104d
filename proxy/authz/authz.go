package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// Config is what an Authorizer needs. The zero Config allows system:masters and the health paths, and nobody else anything.
type Config struct {
	// Review decides what the short-cuts do not; see SubjectAccessReview. Nil: everything else is refused.
	Review func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error)
	// Generation changes whenever Review might answer differently, and ends the answers that are kept. Nil: only time does.
	Generation func() uint64
	// Ready reports whether who answers a Review knows its rules: a kube-apiserver that has just begun refuses what it has not read yet. While it does not, a no
	// is no answer. Nil: it always does.
	Ready func() bool
	// LeaveRemotes allows every request with Attributes.Remote, for the backend to decide (--authorization-mode=backend). False: they are reviewed.
	LeaveRemotes bool
	// AllowPaths are open to everybody; one that ends in * is a prefix. Nil: /healthz, /readyz, /livez, as upstream. Empty and not nil: none.
	AllowPaths []string
	// AllowTTL and DenyTTL are how long a yes and a no are kept. Zero: 10 s each, as k8s.io/apiserver's delegating options. Negative: not at all.
	AllowTTL, DenyTTL time.Duration
	// Metrics registers the counters. Nil: they are not registered.
	Metrics prometheus.Registerer
}

// Attributes are what is to be decided: a user, and what it wants to do.
type Attributes struct {
	// User is who wants it. Nil is refused.
	User user.Info
	// Verb is Kubernetes' verb for a resource, the lower-case method for a path.
	Verb string
	// Resource requests are decided by the fields below; others by Path.
	ResourceRequest bool
	// Group is empty for core. Name, Namespace and Subresource are empty where there is none.
	Group, Version, Resource, Subresource, Namespace, Name string
	// Path is the decoded path of a request that is not for a resource. Ignored for one that is.
	Path string
	// FieldSelector and LabelSelector are the query's, as they stand. Empty: none.
	FieldSelector, LabelSelector string
	// Now is when it wants to, so that the clock is asked once per request. Zero: it is asked. It is no part of the question.
	Now time.Time
	// Remote says that the request goes to an extension server, which can decide for itself. It matters for Config.LeaveRemotes alone.
	Remote bool
}

// Decision is an answer. The zero Decision is no.
type Decision struct {
	// Allowed is whether it may.
	Allowed bool
	// Reason is the authorizer's, for the 403's message and the log. Often empty.
	Reason string
}

// Authorizer says whether a user may. Make one with New.
type Authorizer struct {
	cfg      Config
	paths    map[string]bool
	prefixes []string
	cache    *cache
	flight   singleflight.Group
	queue    *bound.Queue // of reviews, by user
	metrics  metrics
}

const (
	// maxReviews is how many SubjectAccessReviews are under way at once: at a millisecond or two each, tens of thousands a second, a
	// quarter of them for one user.
	maxReviews = 64
	// maxWaiting is how many may be under way or wait for it, a quarter of them for one user; more are refused at once.
	maxWaiting = 4096
	// reviewTimeout bounds one SubjectAccessReview with its retries, as upstream.
	reviewTimeout = 10 * time.Second
	// maxCached is the size of a request's own words beyond which an answer is not kept, as upstream: they are the caller's choice, and could fill any cache.
	maxCached = 10000
)

var (
	errNoUser   = errors.New("authorizing: there is no user")
	errPanicked = errors.New("authorizing: the review panicked")
	errNotReady = errors.New("authorizing: refused by a local apiserver that is not ready, which may not have read its rules yet")
)

// New checks a Config and returns an Authorizer for it.
func New(cfg Config) (*Authorizer, error) {
	cfg.AllowTTL = cmp.Or(cfg.AllowTTL, 10*time.Second)
	cfg.DenyTTL = cmp.Or(cfg.DenyTTL, 10*time.Second)
	if cfg.AllowPaths == nil {
		cfg.AllowPaths = []string{"/healthz", "/readyz", "/livez"}
	}
	if cfg.Generation == nil {
		cfg.Generation = func() uint64 { return 0 }
	}
	z := &Authorizer{
		cfg:     cfg,
		paths:   map[string]bool{},
		cache:   newCache(cfg.Generation),
		queue:   bound.NewQueue(maxReviews, maxWaiting),
		metrics: newMetrics(cfg.Metrics),
	}
	for _, p := range cfg.AllowPaths {
		p = strings.TrimPrefix(p, "/")
		prefix, wild := strings.CutSuffix(p, "*")
		switch {
		case strings.Contains(prefix, "*"):
			return nil, fmt.Errorf("reading always-allow paths: only a trailing * is allowed in %q", p)
		case wild:
			z.prefixes = append(z.prefixes, prefix)
		default:
			z.paths[p] = true
		}
	}
	return z, nil
}

// shortcut decides what needs no review.
func (z *Authorizer) shortcut(a *Attributes) bool {
	if slices.Contains(a.User.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	if z.cfg.LeaveRemotes && a.Remote {
		return true
	}
	if a.ResourceRequest {
		return false
	}
	path := strings.TrimPrefix(a.Path, "/")
	if z.paths[path] {
		return true
	}
	for _, p := range z.prefixes {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// Cached decides what can be decided without I/O. It keeps nothing of a.
func (z *Authorizer) Cached(a *Attributes) (Decision, bool) {
	if a.User == nil {
		return Decision{}, true
	}
	if z.shortcut(a) {
		return Decision{Allowed: true}, true
	}
	if z.cfg.Review == nil {
		return Decision{}, true
	}
	d, ok := z.cache.get(a)
	if ok {
		z.metrics.hits.Inc()
	}
	return d, ok
}

// Authorize decides, asking the local apiserver if it must. An error means that nobody could be asked: the request is refused with 500, as upstream,
// except for ctx's own.
func (z *Authorizer) Authorize(ctx context.Context, a *Attributes) (Decision, error) {
	if a.User == nil {
		return Decision{}, errNoUser
	}
	if d, ok := z.Cached(a); ok {
		return d, nil
	}
	if err := ctx.Err(); err != nil {
		return Decision{}, fmt.Errorf("authorizing: %w", err)
	}
	own := a.clone() // the review may outlive the request and its buffers
	//nolint:contextcheck // many callers share it: it must not end, nor speak through a recorder or a span, with the first of them
	ch := z.flight.DoChan(own.key(), func() (any, error) { return z.review(own) })
	select {
	case r := <-ch:
		d, _ := r.Val.(Decision)
		return d, r.Err
	case <-ctx.Done():
		return Decision{}, fmt.Errorf("authorizing: %w", ctx.Err())
	}
}

// review asks, in a goroutine of singleflight's, where a panic would end the process.
func (z *Authorizer) review(a *Attributes) (d Decision, err error) {
	defer func() {
		if recover() != nil {
			d, err = Decision{}, errPanicked
		}
	}()
	// The one before may have ended between our look-up and here.
	if d, ok := z.cache.get(a); ok {
		return d, nil
	}
	// Counted from before the question: the answer was true then at the earliest.
	asked, generation := time.Now(), z.cfg.Generation()
	d, err = z.ask(context.Background(), a.record())
	if err != nil || a.size() >= maxCached {
		return d, err
	}
	ttl := z.cfg.DenyTTL
	if d.Allowed {
		ttl = z.cfg.AllowTTL
	}
	z.cache.put(a, d, asked.Add(ttl), generation)
	return d, nil
}

func (z *Authorizer) ask(ctx context.Context, a authorizer.Attributes) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	leave, err := z.queue.Enter(ctx, bound.Source{User: a.GetUser().GetName()})
	if err != nil {
		z.metrics.reviewed("busy")
		return Decision{}, fmt.Errorf("authorizing: %w", bound.ErrFull)
	}
	defer leave()
	decision, reason, err := z.cfg.Review(ctx, a)
	switch {
	case decision == authorizer.DecisionAllow: // upstream's filter looks at the decision first: RBAC may fail in part and still allow
		z.metrics.reviewed("allowed")
		return Decision{Allowed: true, Reason: reason}, nil
	case err != nil:
		z.metrics.reviewed("error")
		return Decision{Reason: reason}, fmt.Errorf("authorizing: %w", err)
	case z.cfg.Ready != nil && !z.cfg.Ready():
		z.metrics.reviewed("error")
		return Decision{}, errNotReady
	}
	z.metrics.reviewed("denied")
	return Decision{Reason: reason}, nil
}
