package apiservices

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

// places bound the requests in flight, by kind, and each user to a quarter. None is lent: two clients could hold all.
type places struct {
	writes, reads, lists, watches, bodies bound.Places

	bodyTime time.Duration // how long reading a body may take. Etcd accepts at most 1.5 MiB
}

const (
	maxWrites  = 64
	maxReads   = 128
	maxLists   = 16       // with 10,000 objects and a slow reader, each holds some 20 MB
	maxWatches = 400      // with a slow reader, each may hold all objects
	maxBodies  = 64 << 20 // bytes
	// maxPatch bounds a patch, which is processed even after its client has gone: one of 3 MiB
	// takes 15 s of CPU. An APIService with a bundle of a hundred CAs has 200 KiB.
	maxPatch = 512 << 10
)

type ownKey struct{}

// Own marks a request of this process itself. It needs no place.
func Own(ctx context.Context) context.Context { return context.WithValue(ctx, ownKey{}, true) }

func (p *places) take(r *http.Request, verb string) (place bound.Place, ok bool) {
	if r.Context().Value(ownKey{}) != nil {
		return bound.Place{}, true
	}
	from := sourceOf(r)
	switch verb {
	case "watch":
		return p.watches.Take(from, 1, maxWatches)
	case "get":
		return p.reads.Take(from, 1, maxReads)
	case "list":
		return p.lists.Take(from, 1, maxLists)
	}
	return p.writes.Take(from, 1, maxWrites)
}

func sourceOf(r *http.Request) bound.Source {
	u, _ := request.UserFrom(r.Context())
	return bound.Caller(u, r.RemoteAddr)
}

// body reads a request's body before the request takes a place for writes, so that a slow sender
// does not delay others. The caller must call release when it no longer needs the body.
func (p *places) body(w http.ResponseWriter, r *http.Request) (release func(), err error) {
	if r.Context().Value(ownKey{}) != nil || r.Body == nil || r.Body == http.NoBody {
		return func() {}, nil
	}
	most := int64(maxBody)
	if r.Method == http.MethodPatch {
		most = maxPatch
	}
	size := r.ContentLength
	if size < 0 || size > most {
		size = most
	}
	place, ok := p.bodies.Take(sourceOf(r), size+1, maxBodies)
	if !ok {
		return nil, busy()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(p.bodyTime)) // both net/http's and the engine's writers support it
	data, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	if err != nil { // the deadline stays: net/http would wait for the rest before it answers
		place.Leave()
		late := apierrors.NewTimeoutError("the body of the request did not come within the allotted time", 0)
		late.ErrStatus.Code = http.StatusRequestTimeout
		return nil, late
	}
	_ = control.SetReadDeadline(time.Time{})
	if int64(len(data)) > most {
		place.Leave()
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", most)) // kube-apiserver's words
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	return place.Leave, nil
}

func busy() error {
	return apierrors.NewTooManyRequests("too many requests for APIServices are under way", 1)
}

// boundCopies limits what a JSON patch may copy: repeated copies of copies would double an object with each operation.
// The handlers leave that to the program (k8s.io/apiserver/pkg/server/config.go), and the library has no default.
func boundCopies() { atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxBody) }
