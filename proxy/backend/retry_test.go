package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever one endpoint does to a request, the other one serves it if it may be retried. No request that may have been
// executed is executed twice, unless it is a read. Nor is a watch retried, which may have been answered, or a read
// whose body was sent: it is gone. What is no HTTP is no reason to try again.
func TestRetry(t *testing.T) {
	noHTTP := raw(t, strings.Repeat("220 this is no HTTP ", 20)+"\r\n\r\n", false)
	names := raw(t, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1"+strings.Repeat(" ", 80)+"103\r\n\r\nHTTP/1.1 200 OK\r\n"+proportion.Lines(2100, "n%d", "")+"\r\n", false)
	for _, tt := range []struct {
		name, method string
		watch        bool
		body         string
		answer       http.HandlerFunc
		want         engine.Reason // none: the other one has served it
	}{
		{"GET", http.MethodGet, false, "", closes, engine.ReasonNone},
		{"HEAD", http.MethodHead, false, "", closes, engine.ReasonNone},
		{"POST", http.MethodPost, false, "", closes, engine.ReasonLost},
		{"DELETE", http.MethodDelete, false, "", closes, engine.ReasonLost},
		{"watch", http.MethodGet, true, "", closes, engine.ReasonLost},
		{"a body", http.MethodGet, false, "body", closes, engine.ReasonLost},
		{"GET, no HTTP", http.MethodGet, false, "", noHTTP, engine.ReasonBadResponse},
		{"POST, no HTTP", http.MethodPost, false, "", noHTTP, engine.ReasonBadResponse},
		{"GET, a head of 2,100 names", http.MethodGet, false, "", names, engine.ReasonBadResponse},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, nil)
				bad, good := f.serve(place1, protoH1, tt.answer), f.serve(place2, protoH2, nil)
				req := newRequest(t, tt.method, tt.body)
				// Unprobed endpoints are a lower tier than healthy ones: the first try uses the faulty one.
				status, _, err := read(f.RoundTrip(f.set(healthy(place1), registry.Endpoint{Address: place2}), req, tt.watch))
				check.Same(t, tt.want, reasonOf(err), "why it failed: %v", err)
				if tt.want == engine.ReasonNone {
					check.Same(t, [2]int{http.StatusOK, 1}, [2]int{status, int(good.hits.Load())}, "status, and requests of the healthy endpoint")
				} else {
					check.Same(t, [2]int64{1, 0}, [2]int64{bad.hits.Load(), good.hits.Load()}, "times that it was executed")
				}
			})
		})
	}
}

// Only what a head has of fields is counted, each head for itself: neither the lines of bodies, nor the answers before.
func TestCountedHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		lines := proportion.Lines(9000, "n%d", "")
		s := f.serve(place1, protoH1, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 900 {
				w.Header()[fmt.Sprint("n", i)] = []string{""}
			}
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Content-Length", fmt.Sprint(len(lines))) // chunks would end with empty lines
			_, _ = io.WriteString(w, lines)
		})
		e := f.set(healthy(place1))
		for range 3 {
			status, body, err := f.do(e, http.MethodGet, "")
			check.Same(t, "200 <nil> true", fmt.Sprint(status, " ", err, " ", body == lines), "status, error, and whole body")
		}
		check.Same(t, 3, s.hits.Load(), "requests")
	})
}

// Unreachable endpoints fail no request, whatever its method and body: none of it was read.
func TestRetryUnreachable(t *testing.T) {
	for _, tls := range []bool{false, true} { // is what cannot be had
		f := newFixture(t, func(cfg *Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if tls && address == place1 {
					return answers(notTLS), nil
				}
				return dial(ctx, network, address)
			}
		})
		f.serve(place2, protoH2, func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, n)
		})
		e := f.set(healthy(place1), registry.Endpoint{Address: place2})
		for _, size := range []int{1, maxHeld, maxHeld + 1, -10} { // negative: chunked
			for range 5 {
				length := max(size, -size)
				req := newRequest(t, http.MethodPost, strings.Repeat("x", length))
				if size < 0 {
					req.ContentLength = -1
				}
				status, got := must.Get2(read(f.RoundTrip(e, req, false)))(t)
				check.Same(t, fmt.Sprint("200 ", length), fmt.Sprint(status, " ", got), "%d bytes: status, and bytes that came", size)
			}
		}
		check.Same(t, 0, f.buffered.Held(), "bytes still counted")
		check.Same(t, [2]bool{true, false}, [2]bool{f.signals.count(place1) > 0, f.signals.count(place2) > 0}, "signals: %v", f.signals.list)
	}
}

// An endpoint that refuses connections over HTTP/1.1 is dialled at most ten times a second, however
// many requests it has, and is used soon after it returns.
func TestRefusingEndpointIsDialledRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.backend.HTTP1 = true
		e := f.set(healthy(place1))
		var asking sync.WaitGroup
		for range 200 { // one every 10 ms, each with retries
			asking.Go(func() {
				_, _, err := f.do(e, http.MethodGet, "")
				check.Same(t, engine.ReasonDial, reasonOf(err), "a request")
			})
			time.Sleep(10 * time.Millisecond)
		}
		begun := time.Now()
		asking.Wait()
		check.Within(t, 1, 1+int64((2*time.Second+time.Since(begun))/dialPause), f.dials.Load(), "dials")
		f.serve(place1, protoH1, nil)
		time.Sleep(dialPause)
		status, _ := must.Get2(f.do(e, http.MethodGet, ""))(t)
		check.Same(t, http.StatusOK, status, "status after its return")
	})
}

func dials() map[string]func(*testing.T, *Upstream) error {
	return map[string]func(*testing.T, *Upstream) error{
		"learning": func(t *testing.T, u *Upstream) error { return u.Learn(t.Context(), 0) },
		"upgrade": func(t *testing.T, u *Upstream) error {
			c, err := u.DialUpgrade(t.Context(), nil)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"request": func(t *testing.T, u *Upstream) error {
			_, _, err := roundTrip(t, u, http.MethodPost, "body")
			return err
		},
	}
}

// A host that drops packets, or accepts connections and stays silent, is noticed in time: another one, if there is one,
// gets what was to be dialled. Nothing waits for an endpoint that leaves the table meanwhile.
func TestBlackhole(t *testing.T) {
	const hole, well = place1, place2
	for _, tt := range []struct {
		name    string
		accepts bool
		other   time.Duration // when the other endpoint comes, and this one leaves; negative: never; zero: it is there
		want    engine.Reason
		within  time.Duration
		signals int
	}{
		{"another endpoint", false, 0, "", impatience, 1},
		{"accepts and stays silent", true, 0, "", impatience, 1},
		{"alone", false, -1, engine.ReasonDial, dialTimeout, 1},
		{"leaves", false, time.Second, "", time.Second, 0},
	} {
		for name, dial := range dials() {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(t, nil)
					f.silent(hole, tt.accepts)
					f.serve(well, protoH1, nil)
					e := f.set(healthy(hole))
					switch {
					case tt.other == 0:
						e = f.set(healthy(hole), registry.Endpoint{Address: well})
					case tt.other > 0:
						time.AfterFunc(tt.other, func() { f.set(healthy(well)) })
					}
					start := time.Now()
					err := dial(t, f.Upstream(e))
					check.Same(t, tt.want, reasonOf(err), "why it failed: %v", err)
					check.Within(t, 0, tt.within, time.Since(start), "time")
					time.Sleep(dialTimeout) // the dial continues without the request
					synctest.Wait()
					check.Same(t, tt.signals, f.signals.count(hole), "signals")
				})
			})
		}
	}
}

// A handshake with a distant server takes longer than requests wait for a hanging one. That is noticed once.
func TestPatienceWithDistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = 600 * time.Millisecond
		f := newFixture(t, nil)
		f.before = func(ctx context.Context, _ string) {
			select {
			case <-time.After(far):
			case <-ctx.Done():
			}
		}
		f.serve(place1, protoH1, nil)
		f.serve(place2, protoH1, nil)
		u := f.Upstream(f.set(healthy(place1), healthy(place2)))
		for _, want := range []time.Duration{impatience + far, far, far} {
			start := time.Now()
			must.Do(t, dials()["upgrade"](t, u))
			check.Same(t, want, time.Since(start), "time until a session begins")
		}
	})
}

// The caller's deadline limits everything, including the wait for a connection.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const place3 = "10.0.0.3:443"
		f := newFixture(t, nil)
		hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		f.silent(place1, false)
		f.serve(place2, protoH2, hangs)
		f.serve(place3, protoH1, hangs)
		for _, address := range []string{place1, place2, place3} {
			e := f.set(healthy(address))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			_, err := f.RoundTrip(e, newRequest(t, http.MethodGet, "").WithContext(ctx), false)
			check.Is(t, context.DeadlineExceeded, err, "%s", address)
			check.Same(t, engine.ReasonDeadline, reasonOf(err), "%s: why it failed", address)
			check.Same(t, 2*time.Second, time.Since(start), "%s: time", address)
		}
	})
}

// A read that ends each server that gets it ends two, also where net/http itself sends it again.
func TestFatalRead(t *testing.T) {
	for _, warm := range []bool{false, true} { // there are idle connections
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, nil)
			var ended atomic.Int64
			var all []registry.Endpoint
			for _, address := range []string{place1, place2, place3} {
				f.serve(address, protoH1, func(_ http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodGet {
						ended.Add(1)
						f.servers.Delete(address)
						panic(http.ErrAbortHandler)
					}
				})
				all = append(all, healthy(address))
			}
			e := f.set(all...)
			for range 50 {
				if warm {
					must.Get2(f.do(e, http.MethodPost, ""))(t)
				}
			}
			_, _, err := f.do(e, http.MethodGet, "")
			check.Same(t, [2]bool{true, true}, [2]bool{err != nil, ended.Load() == 2}, "it fails, and ends two servers; idle connections: %v", warm)
		})
	}
}

// Failures are classified by what is known to have been sent.
func TestKindsOfFailure(t *testing.T) {
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return ctx
	}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		err  error
		sent bool
		want engine.Reason
	}{
		{"no connection", t.Context(), &dialError{err: io.EOF}, false, engine.ReasonDial},
		{"an endpoint that is gone", t.Context(), errGone, false, engine.ReasonDial},
		{"ended", t.Context(), fmt.Errorf("reading: %w", io.EOF), true, engine.ReasonLost},
		{"reset", t.Context(), &net.OpError{Op: "read", Err: syscall.ECONNRESET}, true, engine.ReasonLost},
		{"ejected", ended(errEjected), context.Canceled, true, engine.ReasonEjected},
		{"ejected before anything was sent", ended(errEjected), context.Canceled, false, engine.ReasonDial},
		{"no patience", ended(errPatience), context.Canceled, true, engine.ReasonEjected},
		{"the client's body", t.Context(), fmt.Errorf("%w: %w", ErrBody, io.ErrUnexpectedEOF), true, engine.ReasonClientReset},
		{"the client is gone", ended(context.Canceled), io.EOF, true, engine.ReasonDrain},
		{"no HTTP", t.Context(), errors.New("malformed HTTP response"), true, engine.ReasonBadResponse},
	} {
		check.Same(t, tc.want, classify(tc.ctx, tc.err, tc.sent), "%s", tc.name)
	}
}

func closes(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// reasonOf returns why a request has failed. What fails without a reason is a dial for the engine.
func reasonOf(err error) engine.Reason {
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		return f.Reason
	}
	if err != nil {
		return engine.ReasonDial
	}
	return engine.ReasonNone
}

func retryIndex(after engine.Reason) int { return slices.Index(retried[:], after) }

// Retries are limited to a share of requests: a backend that fails every request must not get three times the load.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		bad, worse := f.serve(place1, protoH1, closes), f.serve(place2, protoH1, closes)
		e := f.set(healthy(place1), healthy(place2))
		u := f.Upstream(e)
		const stock, requests = 20, 200
		for range budget.RetryBurst - stock {
			check.Same(t, true, u.budget.Allow(), "the budget is as large as budget.RetryBurst")
		}
		for range requests { // in no time, so that none are earned by it
			_, _, err := f.do(e, http.MethodGet, "")
			check.Same(t, engine.ReasonLost, reasonOf(err), "why it failed")
		}
		check.Same(t, int64(stock+requests*budget.RetryShare), bad.hits.Load()+worse.hits.Load()-requests, "retries of %d requests", requests)
		before := u.meter.exhausted.Load()
		for u.budget.Allow() {
		}
		check.Same(t, true, before > 0, "the exhausted budget is counted")
		check.Same(t, before+1, u.meter.exhausted.Load(), "times, after one more retry")
		check.Same(t, [2]bool{false, true}, [2]bool{u.Plan(false, nil).Budget(), u.Plan(true, nil).Budget()}, "paid for, and for a request that is sent apart, whose budget is its own")
	})
}
