package backend

import (
	"errors"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/registry"
)

// The frame lane asks while it dials, which may be after the ejection that it wants to know of.
func TestEjectedIsAState(t *testing.T) {
	const one, other = "10.0.0.1:443", "10.0.0.2:443"
	f := newFixture(t, nil)
	e := f.set(healthy(one), healthy(other))
	u := f.Upstream(e)
	was, out := u.Ejected(one)
	if out {
		t.Error("a healthy endpoint is out")
	}
	bad := registry.Endpoint{Address: one, Health: registry.Unhealthy}
	f.set(bad, healthy(other))
	<-was
	if _, out := u.Ejected(one); !out {
		t.Error("asked after the ejection: not out")
	}
	f.set(bad, registry.Endpoint{Address: other, Health: registry.Unhealthy})
	if _, out := u.Ejected(one); out {
		t.Error("out although no other is better")
	}
	f.set(bad, healthy(other))
	if _, out := u.Ejected(one); !out {
		t.Error("not out although another is better again")
	}
	f.set(healthy(one), healthy(other))
	if _, out := u.Ejected(one); out {
		t.Error("out although healthy again")
	}
	if next, out := u.Ejected("10.0.0.3:443"); next != nil || out {
		t.Error("an endpoint that is not there can be out")
	}
}

// An endpoint dies with many reads under way: all are answered by the other one. The budget is for backends that are sick, not for
// one death.
func TestManyReadsSurviveADeath(t *testing.T) {
	const reads = 50
	var at [2]atomic.Int64
	end := make(chan struct{})
	wait := func(i int) http.HandlerFunc {
		return func(_ http.ResponseWriter, r *http.Request) {
			at[i].Add(1)
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
	}
	dying, other := newServer(t, h2, wait(0)), newServer(t, h2, wait(1))
	f := newFixture(t, nil)
	e := f.set(healthy(dying.address))
	results := make(chan error, reads)
	for range reads {
		go func() {
			status, _, err := f.do(e, http.MethodGet, "")
			if err == nil && status != http.StatusOK {
				err = errors.New(http.StatusText(status))
			}
			results <- err
		}()
	}
	for at[0].Load() < reads && len(results) == 0 {
		runtime.Gosched()
	}
	e = f.set(healthy(dying.address), healthy(other.address))
	dying.kill()
	for at[1].Load() < reads && len(results) == 0 {
		runtime.Gosched()
	}
	close(end)
	failed := 0
	for range reads {
		if err := <-results; err != nil {
			failed++
			if failed == 1 {
				t.Log(err)
			}
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d reads failed", failed, reads)
	}
}
