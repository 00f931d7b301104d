package proxy

import (
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// beginFollow emits what is known of a request that this lane carries out, and returns what is to be removed from it.
func (r *frameRequest) beginFollow() (remove func(string) bool) {
	d := &r.decision
	r.follow.begin(d)
	if r.follow.span == nil {
		return r.remove
	}
	d.Set = r.follow.span.Fields(d.Set)
	return r.removesTrace
}

// removesTrace is removes where a span takes the place of the client's.
func (r *frameRequest) removesTrace(name string) bool {
	return tracing.Carries(name) || r.removes(name)
}

// endFollow tells how a request has ended.
func (r *frameRequest) endFollow(status int, o *h2.Outcome) {
	e := ending{status: status, own: r.own != nil, err: message(r.own, status), retries: o.Retries, wait: o.Wait, took: o.Duration}
	if e.err == "" {
		e.err = string(o.Reason)
	}
	if o.Endpoint != nil {
		e.endpoint = o.Endpoint.Name
	}
	r.follow.end(&r.decision, &e)
}
