package documents

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// local is a local apiserver.
type local[L any] struct {
	name  string
	hints chan struct{} // one slot: its documents may have changed
	known atomic.Pointer[L]
	fails bool // owned by its goroutine
}

// Local sends requests to a local apiserver.
func (c *Config) Local(server string) Do {
	return func(ctx context.Context, r *http.Request) (*http.Response, error) {
		return c.FetchLocal(ctx, server, r)
	}
}

// Release asks for a local apiserver's release, such as v1.36.3. Where servers have no names, it is
// of no use.
func (c *Config) Release(ctx context.Context, server string) (string, error) {
	if server == "" {
		return "", nil
	}
	a, err := Get(ctx, c.Local(server), Question{Path: "/version", Accept: "application/json"})
	var is struct {
		GitVersion string `json:"gitVersion"`
	}
	if err == nil && json.Unmarshal(a.Body, &is) != nil {
		err = a.Unexpected()
	}
	return is.GitVersion, err
}

// Newer compares two releases, the newer one first.
func Newer(a, b string) int {
	if v, err := version.ParseSemantic(b); err == nil {
		if n, err := v.Compare(a); err == nil {
			return n
		}
	}
	return cmp.Compare(b, a)
}

// LocalChanged hints that a local apiserver's documents may have changed, as after a change of a
// CRD; of all if server is empty. It never blocks.
func (s *Sources[S, L]) LocalChanged(server string) {
	for name, l := range s.locals.Range {
		if server == "" || server == name {
			latest.Wake(l.(*local[L]).hints) //nolint:forcetypeassert // nothing else is stored
		}
	}
}

// Locals yields the names of the local apiservers with their states.
func (s *Sources[S, L]) Locals(yield func(server string, known *L) bool) {
	s.locals.Range(func(_, v any) bool {
		l := v.(*local[L]) //nolint:forcetypeassert // nothing else is stored
		return yield(l.name, l.known.Load())
	})
}

// followLocal asks a local apiserver until ctx ends. Then it is none any more.
func (s *Sources[S, L]) followLocal(ctx context.Context, server string) {
	l := &local[L]{name: server, hints: make(chan struct{}, 1)}
	s.locals.Store(server, l)
	follow(ctx, s.kind.Every, l.hints, func(ctx context.Context) error { return s.askLocal(ctx, l) })
	s.locals.CompareAndDelete(server, l) // it may have come back
	s.Touch()
}

// askLocal asks a local apiserver.
func (s *Sources[S, L]) askLocal(ctx context.Context, l *local[L]) error {
	err := s.kind.AskLocal(ctx, l.name, &l.known)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.polled(err)
	switch {
	case err != nil && !l.fails:
		s.log.Warn("documents of local apiserver cannot be read, the last good ones stay", "document", s.kind.Name, "endpoint", l.name, "err", err)
	case err == nil && l.fails:
		s.log.Info("documents of local apiserver can be read again", "document", s.kind.Name, "endpoint", l.name)
	}
	l.fails = err != nil
	return err
}
