package backend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A request that has chosen its endpoint just before that is ejected, and gets its connection just after, goes elsewhere: nobody would call it back.
func TestEjectedWhileDialling(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(method, func(t *testing.T) {
				hung := newServer(t, proto, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				well := newServer(t, proto, nil)
				dialling, dial := make(chan struct{}), make(chan struct{})
				f := newFixture(t, func(cfg *Config) {
					cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
						if address == hung.address {
							close(dialling)
							<-dial
						}
						return new(net.Dialer).DialContext(ctx, network, address)
					}
				})
				e := f.set(healthy(hung.address))
				type result struct {
					status int
					err    error
				}
				done := make(chan result, 1)
				go func() {
					status, _, err := f.do(e, method, "")
					done <- result{status, err}
				}()
				<-dialling
				f.set(registry.Endpoint{Address: hung.address, Health: registry.Unhealthy}, healthy(well.address))
				close(dial)
				select {
				case r := <-done:
					if r.err != nil || r.status != http.StatusOK || well.hits.Load() != 1 || hung.hits.Load() != 0 {
						t.Errorf("%d, %v; %d requests reached the endpoint that is well, %d the other", r.status, r.err, well.hits.Load(), hung.hits.Load())
					}
				case <-time.After(3 * time.Second):
					t.Errorf("the request still waits for an ejected endpoint (which got %d)", hung.hits.Load())
					hung.CloseClientConnections()
					<-done
				}
				for _, x := range f.Upstream(e).snapshot() {
					x.mu.Lock()
					for _, c := range x.conns {
						if n := c.cc.InFlight(); n != 0 && x.address == hung.address {
							t.Errorf("%d places on the connection to it are lost", n)
						}
					}
					x.mu.Unlock()
				}
			})
		}
	})
}

// An endpoint that was found unhealthy when all were is the floor; it no longer is when another has come back, and what waits for it goes there.
func TestEjectedByAnothersRecovery(t *testing.T) {
	arrived := make(chan struct{})
	hung := newServer(t, h2, func(_ http.ResponseWriter, r *http.Request) { close(arrived); <-r.Context().Done() })
	well := newServer(t, h2, nil)
	f := newFixture(t, nil)
	bad := func(address string) registry.Endpoint {
		return registry.Endpoint{Address: address, Health: registry.Unhealthy}
	}
	e := f.set(bad(hung.address))
	done := make(chan error, 1)
	go func() {
		_, _, err := f.do(e, http.MethodGet, "")
		done <- err
	}()
	<-arrived
	f.set(bad(hung.address), healthy(well.address))
	select {
	case err := <-done:
		if err != nil || well.hits.Load() != 1 {
			t.Errorf("%v; %d requests reached the endpoint that is well", err, well.hits.Load())
		}
	case <-time.After(3 * time.Second):
		t.Error("the request still waits for an unhealthy endpoint")
		hung.CloseClientConnections()
		<-done
	}
}

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

// An endpoint dies with as many reads under way as an apiserver has by default: all are answered by the other one. The budget is for backends that are sick, not for
// one death.
func TestManyReadsSurviveADeath(t *testing.T) {
	const reads = 600 // kube-apiserver's --max-requests-inflight and --max-mutating-requests-inflight together
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
	for at[0].Load() < reads {
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
