package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Of a source's requests that need look-ups, sixteen are decided at once, and the others in turn.
func TestParkedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann, bob := bound.Source{User: "ann"}, bound.Source{User: "bob"}
		l, step, order := &parking{}, make(chan struct{}), make(chan int, 200)
		for i := range 200 {
			if !l.park(ann, 0, func() { order <- i; <-step }) {
				t.Fatalf("request %d is refused", i)
			}
			synctest.Wait()
		}
		other := false
		l.park(bob, 0, func() { other = true })
		synctest.Wait()
		if !other {
			t.Error("another's request waits")
		}
		for done := range 200 {
			if n := len(order); n != min(parkedAtOnce+done, 200) {
				t.Fatalf("%d of 200 have begun when %d are done", n, done)
			}
			step <- struct{}{}
			synctest.Wait()
		}
		close(order)
		var got []int
		for i := range order {
			got = append(got, i)
		}
		if !slices.IsSorted(got) || len(l.by) > 0 {
			t.Errorf("in the order %v, %d lines are left", got, len(l.by))
		}
	})
}

// What waits is bounded in bytes: a connection may end, and its address begin another.
func TestParkedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const head = quickHead - parkedSize
		l, gate := &parking{}, make(chan struct{})
		fill := func(s bound.Source) (n int) {
			for l.park(s, head, func() { <-gate }) {
				n++
			}
			return n - parkedAtOnce
		}
		all := 0
		for i := range 10 {
			n := fill(bound.Stranger(fmt.Sprint("192.0.2.1:", i+1)))
			if want := maxParked / 16 / quickHead; i == 0 && n != want {
				t.Errorf("%d of a connection wait, want %d", n, want)
			}
			all += n
		}
		if want := maxParked / 4 / quickHead; all != want || fill(bound.Source{User: "ann"}) != want {
			t.Errorf("%d of an address wait, want %d, and as many of a user", all, want)
		}
		close(gate)
		synctest.Wait()
		if n := l.held.Held(); n != 0 {
			t.Errorf("nothing waits, and %d bytes are counted", n)
		}
	})
}

// Bad tokens that nobody answers about do not keep a good one of the same connection waiting.
func TestParkedBehindBadTokens(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var generation atomic.Uint64
	gate := make(chan struct{})
	defer close(gate)
	var err error
	w.proxy.cfg.Authn, err = authn.New(authn.Config{
		ReviewGeneration: generation.Load,
		Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "good" {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
			}
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return nil, false, nil
		},
	})
	must.Do(t, err)
	l := &frames{p: w.proxy}
	l.requests.New = func() any { return newFrameRequest(l) }
	conn := &h2.ConnInfo{Remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
	ask := func(token string) chan h2.Plan {
		plan := make(chan h2.Plan, 1)
		h := &h2.Head{Method: http.MethodGet, Path: remoteGV + "/widgets", Fields: []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + token}}}
		if p, ok := l.decide(conn, h, func(p h2.Plan) { plan <- p }); ok {
			plan <- p
		}
		return plan
	}
	<-ask("good")
	generation.Add(1) // whose it is has to be asked again
	for i := range parkedAtOnce {
		ask(fmt.Sprint("bad-", i))
	}
	select {
	case <-ask("good"):
	case <-time.After(5 * time.Second): // a look-up takes 10 s at most
		t.Error("the good token waits for the bad ones")
	}
}
