package proxy

import "github.com/fairlead-proxy/fairlead/proxy/h2"

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
