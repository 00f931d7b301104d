package documents

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// local is a local apiserver.
type local struct {
	name  string
	hints chan struct{} // one slot: its documents may have changed
	tried atomic.Bool   // it was asked once
	fails bool          // owned by its goroutine
}

// Names are the names of the local apiservers.
func (c *Config) Names() []string {
	if c.Servers == nil {
		return []string{""}
	}
	return c.Servers
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
func (s *Sources[S]) LocalChanged(server string) {
	for _, l := range s.locals {
		if server == "" || server == l.name {
			latest.Wake(l.hints)
		}
	}
}

// Tried reports whether each local apiserver was asked once.
func (s *Sources[S]) Tried() bool {
	return !slices.ContainsFunc(s.locals, func(l *local) bool { return !l.tried.Load() })
}

// askLocal asks a local apiserver.
func (s *Sources[S]) askLocal(ctx context.Context, l *local) error {
	err := s.kind.AskLocal(ctx, l.name)
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
	if l.fails = err != nil; !l.tried.Swap(true) {
		s.Touch()
	}
	return err
}
