package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// Plan returns the plan of a request over HTTP/2, as far as it depends on the backend. apart is engine.Plan.Apart, as
// for …/proxy: what a pod, a Service or a node answers through kube-apiserver may end its connection, such as a head
// without end. Nor does it use up the retries of other requests. by is the client connection's; nil spreads requests.
func (u *Upstream) Plan(apart bool, by *Stay) engine.Plan {
	b := &u.budget
	if apart {
		b = &u.budgetApart
	}
	b.Deposit()
	return engine.Plan{
		Forward: &u.forEngine, Client: by, Stays: by != nil && u.pool != 0, Apart: apart,
		Retries: maxRetries, Wait: u.target.wait(), Budget: b.Allow,
	}
}

// pick is engine.Upstream.Pick: it chooses an endpoint for a Stay, if possible none that was tried.
func (u *Upstream) pick(client any, tried []*engine.Endpoint) *engine.Endpoint {
	by, _ := client.(*Stay)
	var avoid [maxRetries]*endpoint
	n := min(len(tried), len(avoid))
	for i, t := range tried[:n] {
		avoid[i], _ = t.Value.(*endpoint) // set by forEngine
	}
	if e := u.take(by, avoid[:n]...); e != nil {
		return e.forEngine()
	}
	return nil
}

// forEngine returns the engine's endpoint. It has its own connections or its carrier's, and is replaced with those.
func (e *endpoint) forEngine() *engine.Endpoint {
	var via *engine.Endpoint
	if c := e.via.Load(); c != nil {
		via = c.forEngine()
	}
	for {
		was := e.inEngine.Load()
		if was != nil && was.Via == via {
			return was
		}
		next := &engine.Endpoint{
			Name: e.address, Host: e.host(), Via: via, Value: e, Release: e.release, Told: e.tell,
			PingTimeout: e.up.pingTimeout(), Failed: e.failed,
		}
		if e.inEngine.CompareAndSwap(was, next) {
			return next
		}
	}
}

// Dial is h2.Config.Dial. When the connection must drain, the engine retires the endpoint. Long-running requests end
// only on one that is no longer trusted (others may have a newer certificate), and watches also for Local.endWatches.
func Dial(ctx context.Context, ep *engine.Endpoint) (c *tls.Conn, closed func(), err error) {
	e := ep.Value.(*endpoint) //nolint:forcetypeassert // set by forEngine: the carrier's, if there is one (newCarrier)
	shared := e.up.shared
	conn, err := e.up.dialOwned(ctx, e, dialing{
		protocols: []string{"h2"},
		drain: func() { // replaces the endpoint for the engine, so that the next pick dials again
			e.inEngine.CompareAndSwap(ep, nil)
			shared.engine.Load().Retire(ep, 365*24*time.Hour) // no end: watches continue
		},
		cut: func(c *Conn) { shared.engine.Load().End(nil, c.Conn, !c.isCut.Load()) },
	})
	if err != nil {
		if alertOf(err) == noProtocol {
			e.up.agreement().Store(new("http/1.1")) // so that the next request uses HTTP/1.1
		}
		return nil, nil, fmt.Errorf("forwarding to %s: %w", e.address, err)
	}
	shared.dialled.Store(conn.Conn, conn)
	return conn.Conn, func() {
		shared.dialled.Delete(conn.Conn)
		_ = conn.Close() // it has ended already
	}, nil
}

// Learn finds out whether the backend speaks HTTP/2, if that is not known: the first request makes
// one extra handshake, and concurrent requests wait for it, no longer than limit. Zero means none.
func (u *Upstream) Learn(ctx context.Context, limit time.Duration) error {
	if _, known := u.speaks(); known {
		return nil
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	asked := u.learning.DoChan("", func() (any, error) {
		c, f := u.dialAny(u.shared.ctx, nil, u.target.protocols()...)
		if f != nil {
			return nil, f
		}
		_ = c.Close() // nothing was sent
		return c, nil
	})
	select {
	case r := <-asked:
		return r.Err //nolint:wrapcheck // a failure
	case <-ctx.Done():
		return fail(over(ctx), "", ctx.Err())
	}
}

// HTTP2 reports whether this upstream is known to speak HTTP/2.
func (u *Upstream) HTTP2() bool {
	yes, _ := u.speaks()
	return yes
}

func (u *Upstream) speaks() (http2, known bool) {
	if protocols := u.target.protocols(); len(protocols) == 1 {
		return protocols[0] == "h2", true
	}
	agreed := u.agreement().Load()
	return agreed != nil && *agreed == "h2", agreed != nil
}

// agreement returns the agreed protocol, which all Upstreams with the Backend share.
func (u *Upstream) agreement() *atomic.Pointer[string] {
	if c := u.carrier.Load(); c != nil {
		return &c.agreed
	}
	return &u.agreed
}

// pingTimeout returns the time within which a dead connection must be noticed.
func (u *Upstream) pingTimeout() time.Duration { return cmp.Or(u.view.Load().pingTimeout, defaultPing) }

// Observe reports to health how long an endpoint took to respond, if not long-running. It neither blocks nor allocates.
func (u *Upstream) Observe(address string, took time.Duration) {
	u.meter.histograms[phaseFirstByte].observe(took)
	u.target.observe(address, took)
}
