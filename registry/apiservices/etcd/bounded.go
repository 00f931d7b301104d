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
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
)

const (
	// requestTimeout is the timeout for etcd: longer than a leader election, which takes 1–2 s, and
	// shorter than clients' timeouts.
	requestTimeout = 5 * time.Second
	// shortTimeout is the timeout for shortFor after a timeout: client-go retries ten times.
	shortTimeout = 500 * time.Millisecond
	shortFor     = 10 * time.Second
)

// bounded answers requests in bounded time even if etcd does not, with an error that clients
// understand. It does not bound watches, nor the cache's own lists, which are long and for which no
// client waits.
type bounded struct {
	storage.Interface
	// timedOut is when a request to etcd last timed out, in nanoseconds since 1970. Zero means that
	// etcd has answered since.
	timedOut atomic.Int64
	// watches of etcd end together.
	watches atomic.Pointer[watches]
}

func (b *bounded) within(ctx context.Context, f func(context.Context) error) error {
	if _, asked := request.RequestInfoFrom(ctx); !asked {
		return f(ctx)
	}
	wait, begun := requestTimeout, time.Now()
	if begun.Sub(time.Unix(0, b.timedOut.Load())) < shortFor {
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
		b.timedOut.Store(0)
		return err
	case wait == requestTimeout:
		b.timedOut.Store(time.Now().UnixNano())
		klog.ErrorS(err, "etcd did not answer") // err may have addresses, which clients must not see
	}
	refusal := apierrors.NewServiceUnavailable("etcd did not answer, or takes no writes")
	refusal.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return refusal
}

// tooLarge is in gRPC's error for a request above 2 MiB. Its code is that of a full etcd.
const tooLarge = "message larger than max"

// unavailable reports whether an error means that etcd is unreachable, without a leader, overloaded
// or full.
func unavailable(err error) bool {
	code := status.Code(err)
	if coded := interface{ Code() codes.Code }(nil); errors.As(err, &coded) {
		code = coded.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.ResourceExhausted || errors.Is(err, context.DeadlineExceeded)
}

func (b *bounded) Create(ctx context.Context, key string, o, out runtime.Object, ttl uint64) error {
	return b.within(ctx, func(ctx context.Context) error { return b.Interface.Create(ctx, key, o, out, ttl) })
}

func (b *bounded) Delete(ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, valid storage.ValidateObjectFunc, cached runtime.Object, o storage.DeleteOptions) error {
	return b.within(ctx, func(ctx context.Context) error { return b.Interface.Delete(ctx, key, out, p, valid, cached, o) })
}

func (b *bounded) Get(ctx context.Context, key string, o storage.GetOptions, into runtime.Object) error {
	return b.within(ctx, func(ctx context.Context) error { return b.Interface.Get(ctx, key, o, into) })
}

func (b *bounded) GetList(ctx context.Context, key string, o storage.ListOptions, into runtime.Object) error {
	return b.within(ctx, func(ctx context.Context) error { return b.Interface.GetList(ctx, key, o, into) })
}

func (b *bounded) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, missing bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return b.within(ctx, func(ctx context.Context) error {
		return b.Interface.GuaranteedUpdate(ctx, key, into, missing, p, update, cached)
	})
}

func (b *bounded) GetCurrentResourceVersion(ctx context.Context) (revision uint64, err error) {
	err = b.within(ctx, func(ctx context.Context) error {
		revision, err = b.Interface.GetCurrentResourceVersion(ctx)
		return err
	})
	return revision, err
}
