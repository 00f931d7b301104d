package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// What a request holds is taken when it is ready to be sent, and given back by time.
const (
	// bodyTime is for how long a body is waited for that is read before its request is sent, of 256 KiB at most: kube-apiserver gives
	// the whole request no longer (--request-timeout), so who needs longer has never been served.
	bodyTime = time.Minute
	// strangerTime is for how long a request of the unproven pool may hold its place: kube-apiserver's own --request-timeout.
	strangerTime = time.Minute
	// strangerWatch is the same for long-running ones: kube-apiserver ends each watch after an hour at the latest
	// (--min-request-timeout, and as much again by chance).
	strangerWatch = time.Hour
)

// strangersTime is for how long a request may hold its place. Zero: it holds none of the unproven pool's.
func strangersTime(d *Decision) time.Duration {
	switch {
	case d.Action != ToLocal || d.Pool != authn.PoolUnproven:
		return 0
	case d.LongRunning:
		return strangerWatch
	}
	return strangerTime
}

// within gives a request the time that its place may be held, and has a long-running one end with the process.
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

// prove asks the local apiserver whether it knows a long-running request's token that is not proven, so that the request can go
// over the proven pool: after a restart of ours every watch and session of the cluster comes back with a token that we have not
// seen, and must neither hold a stranger's place for its whole life nor share a connection with tokens that may be bad. Requests
// that come together with one token wait for one proof.
func (p *Proxy) prove(ctx context.Context, d *Decision, from bound.Source) error {
	if d.Action != ToLocal || d.Pool != authn.PoolUnproven || !d.LongRunning || !d.Credentials.Provable() {
		return nil
	}
	token := d.Credentials.Token.Secret()
	//nolint:contextcheck // many requests share it: it must not end with the first of them
	proof := p.proofs.DoChan(token, func() (any, error) { return p.cfg.Local.Prove(context.Background(), token, from) })
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

// hold reads a short body of a client that has announced its length, before its request takes any place.
func (p *Proxy) hold(w http.ResponseWriter, r *http.Request, x *exchange, from bound.Source) (end func(), err error) {
	if r.ContentLength <= 0 || x.head.Upgrade != "" { // which may have none
		return func() {}, nil
	}
	until := time.Now().Add(p.bodyTime)
	if at, ok := r.Context().Deadline(); ok && at.Before(until) {
		until = at
	}
	// A writer without deadlines is one of this process's own, whose bodies are in memory.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(until)
	if end, err = x.upstream.Hold(r, from); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errSlowBody()
	}
	_ = control.SetReadDeadline(time.Time{})
	return end, err
}

// noPlace answers a request for which there is no place. The health relay's callers are load balancers: that others ask too is no
// reason to send nobody here any more, and our own prober's last word is a second or two old.
func (p *Proxy) noPlace(w http.ResponseWriter, r *http.Request, x *exchange, err error) {
	if x.relayed && p.cfg.Local.Ready() == nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte("ok")) // a caller that has gone needs no answer
		return
	}
	p.writeError(w, r, err)
}
