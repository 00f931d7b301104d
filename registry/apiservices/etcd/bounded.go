package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/klog/v2"
)

const (
	// requestTimeout is etcd's: longer than a leader election, which takes 1–2 s, and shorter than clients' timeouts.
	requestTimeout = 5 * time.Second
	// shortTimeout is the timeout for shortFor after a timeout: client-go retries ten times.
	shortTimeout = 500 * time.Millisecond
	shortFor     = 10 * time.Second
	tooLarge     = "message larger than max" // in gRPC's error for a request above 2 MiB, whose code is a full etcd's
)

// bounded answers requests in bounded time even if etcd does not, with an error that clients
// understand. It bounds no watches, nor the cache's own lists, which are long and no client awaits.
type bounded struct {
	storage.Interface
	timedOut atomic.Pointer[time.Time] // when a request to etcd last timed out. Nil: etcd has answered since
	watches  atomic.Pointer[watches]   // of etcd. They end together
}

func (b *bounded) within(ctx context.Context, writes bool, f func(context.Context) error) error {
	if _, asked := request.RequestInfoFrom(ctx); !asked {
		return f(ctx)
	}
	wait := requestTimeout
	if last := b.timedOut.Load(); last != nil && time.Since(*last) < shortFor {
		wait = shortTimeout
	}
	inner, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := f(inner)
	switch {
	case ctx.Err() != nil: // the client has gone
		return err
	case err != nil && strings.Contains(err.Error(), tooLarge):
		return apierrors.NewRequestEntityTooLargeError("etcd takes no objects of this size")
	case err == nil || !unavailable(err):
		b.timedOut.Store(nil)
		return err
	case wait == requestTimeout:
		b.timedOut.Store(new(time.Now()))
		klog.ErrorS(err, "etcd did not answer") // err may have addresses, which clients must not see
	}
	refusal := apierrors.NewServiceUnavailable("etcd did not answer, or takes no writes")
	if !writes || strings.Contains(err.Error(), "while dialing") { // else it may be done, and client-go would repeat it
		refusal.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	}
	return refusal
}

// unavailable reports whether etcd is unreachable, without a leader, overloaded or full.
func unavailable(err error) bool {
	code := status.Code(err)
	if coded := interface{ Code() codes.Code }(nil); errors.As(err, &coded) {
		code = coded.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.ResourceExhausted ||
		errors.Is(err, context.DeadlineExceeded)
}

func (b *bounded) Create(ctx context.Context, key string, o, out runtime.Object, ttl uint64) error {
	return b.within(ctx, true, func(ctx context.Context) error { return b.Interface.Create(ctx, key, o, out, ttl) })
}

func (b *bounded) Delete(
	ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, valid storage.ValidateObjectFunc,
	cached runtime.Object, o storage.DeleteOptions,
) error {
	do := func(ctx context.Context) error { return b.Interface.Delete(ctx, key, out, p, valid, cached, o) }
	return b.within(ctx, true, do)
}

func (b *bounded) Get(ctx context.Context, key string, o storage.GetOptions, into runtime.Object) error {
	return b.within(ctx, false, func(ctx context.Context) error { return b.Interface.Get(ctx, key, o, into) })
}

func (b *bounded) GetList(ctx context.Context, key string, o storage.ListOptions, into runtime.Object) error {
	return b.within(ctx, false, func(ctx context.Context) error { return b.Interface.GetList(ctx, key, o, into) })
}

func (b *bounded) GuaranteedUpdate(
	ctx context.Context, key string, into runtime.Object, missing bool, p *storage.Preconditions,
	update storage.UpdateFunc, cached runtime.Object,
) error {
	return b.within(ctx, true, func(ctx context.Context) error {
		return b.Interface.GuaranteedUpdate(ctx, key, into, missing, p, update, cached)
	})
}

func (b *bounded) GetCurrentResourceVersion(ctx context.Context) (revision uint64, err error) {
	err = b.within(ctx, false, func(ctx context.Context) error {
		revision, err = b.Interface.GetCurrentResourceVersion(ctx)
		return err
	})
	return revision, err
}

// An etcd that was restored from a backup continues at an older revision. A watch from a newer one
// would wait for that, and miss all changes until then: Kubernetes' own servers have this problem
// and must be restarted. Here a restore is detected, and everything is relisted.

// detectRestores compares etcd's revision with the cache's until ctx ends.
func (b *bounded) detectRestores(ctx context.Context, cached *cacher.Cacher) {
	const detectEvery = 5 * time.Second // bounds how long a restore stays undetected
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if !cached.Ready() {
			return // the next call would wait
		}
		was, err := cached.LastSyncResourceVersion()
		if is, unknown := b.now(ctx); err == nil && unknown == nil && is < was {
			klog.ErrorS(nil, "etcd's revision has decreased, as after a restore: everything is relisted",
				"was", was, "is", is)
			b.watches.Swap(newWatches()).end()
		}
	}, detectEvery)
}

// now returns etcd's revision.
func (b *bounded) now(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return b.GetCurrentResourceVersion(ctx)
}

// notFuture returns an error for a revision from the future: the client relists. It allows all while etcd is away.
func (b *bounded) notFuture(ctx context.Context, from string) error {
	wanted, err := b.Versioner().ParseResourceVersion(from)
	if err != nil || wanted == 0 {
		return nil //nolint:nilerr // the storage returns the error
	}
	if now, err := b.now(ctx); err == nil && now < wanted {
		return apierrors.NewResourceExpired("the resource version is newer than etcd, which may have been restored")
	}
	return nil
}

// watches is a set of watches that end together.
type watches struct {
	context.Context //nolint:containedctx // it only ends them
	end             context.CancelFunc
}

func newWatches() *watches {
	ctx, cancel := context.WithCancel(context.Background())
	return &watches{ctx, cancel}
}

func (b *bounded) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	all := b.watches.Load() // before the revisions are compared: a restore in between must end the watch
	if err := b.notFuture(ctx, o.ResourceVersion); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.Interface.Watch(ctx, key, o)
	if err != nil {
		cancel()
		return nil, err
	}
	forget := context.AfterFunc(all, cancel) //nolint:contextcheck // it ends with either
	return &ending{w, func() { forget(); cancel() }}, nil
}

type ending struct {
	watch.Interface
	end func()
}

func (w *ending) Stop() {
	w.Interface.Stop()
	w.end()
}

// Known returns an error for a revision that only etcd's state before a restore can have had: with
// the cache's own, client-go would retry ten times. If merely the cache is behind, it waits itself.
func (s *Store) Known(ctx context.Context, version string) error {
	wanted, err := s.raw.Versioner().ParseResourceVersion(version)
	if err != nil || !s.cached.Ready() {
		return nil //nolint:nilerr // the cache returns the error
	}
	if have, err := s.cached.LastSyncResourceVersion(); err != nil || wanted <= have {
		return nil //nolint:nilerr // as above
	}
	return s.raw.notFuture(ctx, version)
}
