package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// A request takes its places when it is ready to be sent, and gives them back by these times.
const (
	// bodyTime limits the wait for a body that is read before its request is sent, of at most 256
	// KiB: kube-apiserver's limit for the whole request (--request-timeout), so a slower client was
	// never served.
	bodyTime = time.Minute
	// strangerTime limits how long a request of the unproven pool may hold its place:
	// kube-apiserver's --request-timeout.
	strangerTime = time.Minute
	// strangerWatch is the limit for long-running ones: kube-apiserver ends each watch after at
	// most an hour (--min-request-timeout, plus up to as much again at random).
	strangerWatch = time.Hour
)

// strangersTime returns how long a request may hold its place. Zero means that it holds no place of
// the unproven pool.
func strangersTime(d *Decision) time.Duration {
	switch {
	case d.Action != ToLocal || d.Pool != authn.PoolUnproven:
		return 0
	case d.LongRunning:
		return strangerWatch
	}
	return strangerTime
}

// maxEchoed is the longest target whose refusal surely fits into the buffer of a client that does
// not read: kube-apiserver's 403 repeats the path, and JSON has six bytes for some.
const maxEchoed = 8 << 10

// lasts reports whether a stranger can make its request last for all of its time, by sending its
// body slowly or by not reading the answer. Such a request counts with the long-running ones. All
// clients behind a load balancer share an address, and the places of short requests are those with
// which their new tokens are proven.
func lasts(r *http.Request, x *exchange) bool {
	return strangersTime(&x.decision) != 0 && (x.upstream.Streams(r) || len(x.head.Path)+len(x.head.RawQuery) > maxEchoed)
}

// within limits a request to the time for its place, and lets EndLongRunning end a long-running
// one.
func (p *Proxy) within(r *http.Request, x *exchange) (*http.Request, context.CancelFunc) {
	d := &x.decision
	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if limit := strangersTime(d); limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		r = r.WithContext(ctx)
	}
	if !d.LongRunning {
		return r, cancel
	}
	r, end := p.endable(r, &x.events)
	return r, func() { end(); cancel() }
}

// prove asks the local apiserver whether it accepts the unproven token of a long-running request,
// so that the request can use the proven pool. After a restart of Fairlead, all watches and
// sessions of the cluster return with tokens that it has not seen. They must neither hold a place
// of the unproven pool for hours nor share a connection with tokens that may be bad. Concurrent
// requests with one token share a proof.
func (p *Proxy) prove(ctx context.Context, x *exchange, from bound.Source) error {
	d := &x.decision
	if d.Action != ToLocal || d.Pool != authn.PoolUnproven || !d.LongRunning || !d.Credentials.Provable() {
		return nil
	}
	token := d.Credentials.Token.Secret()
	//nolint:contextcheck // requests share it: it must not end with the first of them
	proof := p.proofs.DoChan(token, func() (any, error) { return p.cfg.Local.Prove(context.Background(), token, from, x.stay) })
	select {
	case <-ctx.Done():
		return fmt.Errorf("proving a token: %w", ctx.Err())
	case r := <-proof:
		if r.Err != nil {
			return r.Err
		}
		status, _ := r.Val.(int)
		p.cfg.Authn.Seen(&d.Credentials, status)
	}
	d.Pool = p.cfg.Authn.Pool(&d.Credentials)
	d.Strip.pool = d.Pool
	return nil
}

// hold reads a short body of announced length before its request takes any of the local apiserver's
// places for strangers. Others' bodies are sent as they come.
func (p *Proxy) hold(w http.ResponseWriter, r *http.Request, x *exchange, from bound.Source) (end func(), err error) {
	// An upgrade may have no body. A client that expects 100 Continue sends its body only to a
	// server that wants it, which a 401 says.
	if r.ContentLength <= 0 || x.head.Upgrade != "" || x.decision.Action != ToLocal || expects(r) {
		return func() {}, nil
	}
	// Only writers of this process itself have no deadlines; their bodies are in memory.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(p.bodyTime))
	if end, err = x.upstream.Hold(r, from); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errSlowBody
	}
	_ = control.SetReadDeadline(time.Time{})
	return end, err
}

// noPlace answers a request that got no place. Callers of the health relay are load balancers. Load
// from other callers must not make them take this replica out, and the prober's own result is at
// most two seconds old.
func (p *Proxy) noPlace(w http.ResponseWriter, r *http.Request, x *exchange, err error) {
	if x.relayed && p.cfg.Local.Ready() == nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte("ok")) // a caller that has gone needs no response
		return
	}
	p.writeError(w, r, err)
}
