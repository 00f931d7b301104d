//go:build e2e

package faults

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	rate       = 300 // the number of requests per second
	freshEvery = 15  // the share of requests with a new connection: one in so many
)

// target is what the load reads and watches.
type target struct {
	name       string
	get, watch string
}

// caller is one identity with its long-lived connections.
type caller struct {
	w      *world
	h2     bool
	header http.Header // of every request
	asked  atomic.Int64
	now    atomic.Pointer[http.Transport]
}

// move gives the caller new connections with a new certificate. Its open watches stay on the old ones.
func (c *caller) move(id identity) {
	lasting := c.w.transport(id, c.h2)
	lasting.MaxIdleConnsPerHost = 16 // as many requests as there are at a time over HTTP/1.1
	c.now.Store(lasting)
}

// RoundTrip adds the caller's header.
func (c *caller) RoundTrip(r *http.Request) (*http.Response, error) {
	lasting := c.now.Load()
	r = r.Clone(r.Context())
	maps.Copy(r.Header, c.header)
	if c.asked.Add(1)%freshEvery != 0 || r.URL.Query().Has("watch") {
		return lasting.RoundTrip(r)
	}
	fresh := lasting.Clone()
	fresh.DisableKeepAlives = true
	return fresh.RoundTrip(r)
}

// load is a steady stream of requests in each case, with three kinds of identity, over HTTP/2 and HTTP/1.1, to the
// local apiserver and to three extension servers, and watches that are always open and get events all the time. A
// request fails unless its status is 200; no client here retries. A watch that ends counts as cut off, with one
// exception: its backend has just lost the trust of its connection, and it ends between two events with a clean end of
// the body, as after kube-apiserver's own watch timeout.
type load struct {
	*volley.Load
	targets []target
	callers [3]*caller
	watches []*watching
}

// startLoad starts the watches, until the test ends.
func startLoad(t *testing.T, d *door, targets []target) *load {
	t.Helper()
	l := &load{targets: targets, Load: &volley.Load{Every: time.Second / rate}}
	for i, id := range []identity{masters(d.w.clients.first), gateway(d.w.proxies.first), {header: ask.Bearer("admin-token")}} {
		l.callers[i] = &caller{w: d.w, h2: i != 1, header: id.header}
		l.callers[i].move(id)
		l.Clients = append(l.Clients, &http.Client{Transport: l.callers[i]})
	}
	l.Make = func(i int) (string, string, string) {
		return http.MethodGet, d.Endpoint.URL + targets[i/len(l.callers)%len(targets)].get, ""
	}
	for _, tg := range targets {
		for i := range 2 { // a certificate and a front proxy: no rotation ends the token's identity
			w := &watching{&volley.Watch{Client: l.Clients[i], URL: d.Endpoint.URL + tg.watch}, fmt.Sprintf("watch %d of %s", i, tg.name), tg.name}
			l.watches = append(l.watches, w)
			must.Run(t, func(ctx context.Context) error { w.Run(ctx); return ctx.Err() })
		}
	}
	return l
}

// watching is a watch of one target.
type watching struct {
	*volley.Watch
	who, target string
}

func (l *load) begin(t *testing.T) {
	t.Helper()
	l.alive(t)
	l.Start(t)
}

// judge ends the requests, and fails the test for every failed one and every watch that was cut
// off. Those of the distrusted target must have ended cleanly.
func (l *load) judge(t *testing.T, distrusted string) {
	t.Helper()
	l.alive(t)
	volley.Judge(t, l.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil || s.Took > 10*time.Second })
	for _, w := range l.watches {
		all := w.Ends()
		for _, e := range all {
			check.Same(t, true, e.Err == nil && w.target == distrusted, "cut off: %s: %+v", w.who, e)
		}
		check.Same(t, true, w.target != distrusted || len(all) != 0, "%s is still open over a connection without trust", w.who)
	}
}

// alive waits until every watch has got an event: a hung watch is as bad as a cut one.
func (l *load) alive(t *testing.T) {
	t.Helper()
	for _, w := range l.watches {
		before := w.Events()
		suite.Eventually(t, 10*time.Second, "an event for "+w.who, func() (bool, string) { return w.Events() > before, "none came" })
	}
}
