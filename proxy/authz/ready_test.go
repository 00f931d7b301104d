package authz

import (
	"errors"
	"sync/atomic"
	"testing"
)

// A no of an apiserver that is not ready is neither passed on nor kept. Its yes is: rules that are
// not read yet allow nothing.
func TestNotReady(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	r := &asked{}
	z := newAuthorizer(t, Config{Review: r.review, Ready: ready.Load})
	for _, name := range []string{"denied", "nobody"} {
		if d, err := z.Authorize(t.Context(), get(name)); d.Allowed || !errors.Is(err, errNotReady) {
			t.Errorf("%s: %v, %v while not ready", name, d, err)
		}
		if _, known := z.Cached(get(name)); known {
			t.Errorf("%s: kept what an apiserver says that is not ready", name)
		}
	}
	if d, err := z.Authorize(t.Context(), get("alice")); !d.Allowed || err != nil {
		t.Errorf("%v, %v for who may", d, err)
	}
	ready.Store(true)
	if d, err := z.Authorize(t.Context(), get("denied")); d.Allowed || err != nil {
		t.Errorf("%v, %v when ready", d, err)
	}
	if _, known := z.Cached(get("denied")); !known || r.n.Load() != 4 {
		t.Errorf("kept: %v, asked %d times", known, r.n.Load())
	}
}
