package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A request that waits for an ejected endpoint is moved if nothing was sent or it may be retried. A
// write that was sent may still be answered.
func TestEjected(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		sent         bool // before the ejection
		want         int64
	}{
		{"read that waits for a connection", http.MethodGet, false, 1},
		{"write that waits for a connection", http.MethodPost, false, 1},
		{"read that waits for an answer", http.MethodGet, true, 1},
		{"write that waits for an answer", http.MethodPost, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil)
				f.before = func(_ context.Context, address string) {
					if address == place1 && !tt.sent {
						time.Sleep(time.Second)
					}
				}
				f.serve(place1, protoH1, func(http.ResponseWriter, *http.Request) { time.Sleep(3 * time.Second) })
				well := f.serve(place2, protoH1, nil)
				unhealthy := registry.Endpoint{Address: place1, Health: registry.Unhealthy}
				e := f.set(unhealthy) // used, because it is the only one
				start := time.Now()
				time.AfterFunc(500*time.Millisecond, func() { f.set(unhealthy, healthy(place2)) })
				status, _, err := f.do(e, tt.method, "")
				check.Same(t, fmt.Sprint("200 <nil> ", tt.want), fmt.Sprint(status, " ", err, " ", well.hits.Load()), "the answer, and requests that reached the healthy endpoint")
				check.Same(t, true, tt.want == 0 || time.Since(start) == 500*time.Millisecond, "moved at once, not after %v", time.Since(start))
				check.Same(t, tt.sent && tt.want > 0, f.Upstream(e).meter.retries[retryIndex(engine.ReasonEjected)].Load() > 0, "retries are counted for ejected endpoints")
				time.Sleep(5 * time.Second) // until the dial and the handler end
			})
		})
	}
}

// A response that begins while its endpoint is ejected is not cut: it is whole, or another endpoint's.
func TestEjectedAtItsAnswer(t *testing.T) {
	f, ejected := newFixture(t, nil), make(chan struct{}, 1)
	unhealthy := registry.Endpoint{Address: place1, Health: registry.Unhealthy}
	f.serve(place1, protoH1, func(w http.ResponseWriter, _ *http.Request) {
		f.set(unhealthy, healthy(place2))
		ejected <- struct{}{}
		_, _ = w.Write(make([]byte, 64<<10))
	})
	f.serve(place2, protoH1, nil)
	for range 200 {
		must.Get2(f.do(f.set(unhealthy), http.MethodGet, ""))(t)
		<-ejected
	}
}

// A watch over HTTP/1.1 has no sign of life but the verdict on its endpoint. It ends when another endpoint is healthy,
// so that its client goes on there. Without another one it ends when its endpoint is hung, or has left the table while
// it was unhealthy, and it was quiet for a while: not if the endpoint is only unhealthy, runs again, or still sends.
func TestHungWatch(t *testing.T) {
	well, bad := healthy(place1), registry.Endpoint{Address: place1, Health: registry.Unhealthy}
	hung, other := registry.Endpoint{Address: place1, Health: registry.Unhealthy, Hung: true}, healthy(place2)
	type table []registry.Endpoint
	const quiet, ever = 10 * time.Second, time.Hour
	for _, tt := range []struct {
		name  string
		later []table       // one each 9 s
		sends time.Duration // how long an event comes each second
		want  time.Duration // zero means that it stays
	}{
		{"another one is healthy later", []table{{bad}, {bad, other}}, 0, 9 * time.Second},
		{"hung", []table{{hung}}, 0, quiet},
		{"hung later", []table{{bad}, {hung}}, 0, quiet},
		{"hung late", []table{{bad}, {bad}, {hung}}, 0, 2 * quiet},
		{"hung, and sends", []table{{hung}}, time.Minute + time.Second/2, time.Minute + quiet},
		{"unhealthy", []table{{bad}}, 0, 0},
		{"unhealthy, then gone", []table{{bad}, {other}}, 0, quiet},
		{"gone", []table{{well}, {other}}, 0, 0},
		{"hung for a moment", []table{{hung}, {bad}}, 0, 0},
		{"hung for a moment, twice", []table{{hung}, {well}, {hung}}, 0, 2 * quiet},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil)
				begun, end := time.Now(), make(chan struct{})
				f.serve(place1, protoH1, func(w http.ResponseWriter, _ *http.Request) {
					for w.(http.Flusher).Flush(); time.Since(begun) < tt.sends; time.Sleep(time.Second) {
						_, _ = io.WriteString(w, "event\n")
						w.(http.Flusher).Flush()
					}
					<-end
				})
				res := must.Get(f.RoundTrip(f.set(well), newRequest(t, http.MethodGet, ""), true))(t)
				go func() {
					for _, endpoints := range tt.later {
						f.set(endpoints...)
						time.Sleep(9 * time.Second)
					}
				}()
				time.AfterFunc(ever, func() { close(end) })
				_, err := io.ReadAll(res.Body)
				took := time.Since(begun)
				check.Same(t, true, tt.want > 0 || err == nil && took >= ever, "ended after %v with %v", took, err)
				check.Same(t, true, tt.want == 0 || took == tt.want && errors.Is(err, net.ErrClosed), "ended after %v with %v, want net.ErrClosed after %v", took, err, tt.want)
				check.Same(t, 0, f.signals.count(place1), "hints to health")
				must.Do(t, res.Body.Close())
				time.Sleep(ever)
			})
		})
	}
}

// After an endpoint dies with many reads under way, the other one answers them all. The retry
// budget is meant for failing backends, not for one death. On a busy machine, handshakes of as many
// real connections can take longer than a dial may.
func TestManyReadsSurviveADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reads = 100 // each has a connection of its own, and so a handshake
		f := newFixture(t, nil)
		end := make(chan struct{})
		wait := func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
		dying, other := f.serve(place1, protoH2, wait), f.serve(place2, protoH2, wait)
		e := f.set(healthy(place1))
		var asking sync.WaitGroup
		for range reads {
			asking.Go(func() {
				status, _, err := f.do(e, http.MethodGet, "")
				check.Same(t, "200 <nil>", fmt.Sprint(status, " ", err), "a read")
			})
		}
		synctest.Wait()
		f.set(healthy(place1), healthy(place2))
		must.Do(t, dying.Close())
		synctest.Wait()
		check.Same(t, [2]int64{reads, reads}, [2]int64{dying.hits.Load(), other.hits.Load()}, "reads at each")
		check.Same(t, reads, other.open.Load(), "connections")
		close(end)
		asking.Wait()
	})
}

// A failure makes an endpoint suspect, or only has it probed, or says nothing about it. A dial over shared connections
// is judged once.
func TestWhatAFailureSays(t *testing.T) {
	type effect struct {
		Suspect bool
		Signals int
	}
	connecting := func(err error) error { return fmt.Errorf("forwarding: %w", &dialError{dialConnect, err}) }
	for _, tt := range []struct {
		name          string
		err           error
		idle          bool
		member, owner effect
	}{
		{"lost", io.EOF, false, effect{true, 1}, effect{true, 1}},
		{"closed while idle", io.EOF, true, effect{false, 1}, effect{false, 1}},
		{"silent while idle", errors.New("backend silent"), true, effect{true, 1}, effect{true, 1}},
		{"refused", connecting(syscall.ECONNREFUSED), false, effect{false, 1}, effect{}},
		{"too many open files", connecting(os.NewSyscallError("socket", syscall.EMFILE)), false, effect{}, effect{}},
		{"taking it over", os.NewSyscallError("fcntl", syscall.ENFILE), false, effect{}, effect{}},
		{"canceled", connecting(context.Canceled), false, effect{}, effect{}},
		{"bundle", &dialError{dialTrust, errors.New("bad bundle")}, false, effect{}, effect{}},
		{"ALPN", &dialError{dialTLS, &net.OpError{Op: "remote error", Err: tls.AlertError(120)}}, false, effect{}, effect{}},
	} {
		f := newStreet(t, nil)
		e := f.Upstream(f.set(healthy(place1))).at(place1)
		e.failed(tt.err, tt.idle)
		check.Same(t, tt.member, effect{e.suspicion.failing(), f.signals.count(place1)}, "%s: who shares it", tt.name)
		f.signals.list = nil
		e.via.Load().failed(tt.err, tt.idle)
		check.Same(t, tt.owner, effect{e.via.Load().suspicion.failing(), f.signals.count(place1)}, "%s: whose it is", tt.name)
	}
}
