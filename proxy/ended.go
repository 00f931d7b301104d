package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// ended is the outcome of a request that ServeHTTP has forwarded. The engine may end the request
// before its client has the whole response, or after.
type ended struct {
	body      *uploaded
	offEngine bool          // the engine does not carry the request
	sent      time.Duration // from its arrival until it was sent; zero means that no line is written
	up, down  int64         // bytes of an upgraded session

	mu sync.Mutex // guards o
	o  h2.Outcome
}

func (e *ended) set(o h2.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.o = o
}

func (e *ended) get() (o h2.Outcome) {
	if e == nil {
		return o
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	o = e.o
	o.Received = e.body.read.Load() + e.up
	return o
}

// at records the endpoint of a request over HTTP/1.1.
func (e *ended) at(address string) {
	e.set(h2.Outcome{Endpoint: &h2.Endpoint{Name: address}, Retries: -1})
}

// noteSent records that the request is sent to its backend now.
func (x *exchange) noteSent() {
	if x.p.writesLines() {
		x.ended.sent = time.Since(x.head.Arrived)
	}
}

// broke records why a request outside the engine has failed, as one of the engine's reasons.
func (e *ended) broke(err error) {
	if e == nil || !e.offEngine {
		return
	}
	o := e.get()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		o.Reason = engine.ReasonDeadline
	case errors.Is(err, context.Canceled): // the client is still there
		o.Reason = engine.ReasonDrain
	case errors.Is(err, backend.ErrUnanswered):
		o.Reason = engine.ReasonLost
	case errors.Is(err, backend.ErrBadResponse):
		o.Reason = engine.ReasonBadResponse
	case errors.Is(err, backend.ErrUnreachable):
		o.Reason = engine.ReasonDial
	}
	e.set(o)
}

// The end of a request in the access log, if the engine gives no reason.
const (
	endComplete = "complete"
	endRefused  = "refused-here"
	// maxCause bounds a backend's text: a GOAWAY's is shorter, names in a certificate may be
	// longer.
	maxCause = 256
)

// line returns the line of the access log. The query is left out because it can hold secrets.
func (x *exchange) line(f *finished, o *h2.Outcome) accesslog.Line {
	h, d := x.head, &x.decision
	line := accesslog.Line{
		Method: h.Method, Path: h.Path, Verb: d.Request.Verb, From: h.RemoteIP, Proto: f.proto, Status: f.status, Bytes: f.bytes, In: o.Received,
		Waited: f.waited, First: f.first, Took: f.took, Ended: h.Arrived.Add(f.took), New: o.New, End: string(o.Reason), AuditID: x.audit,
	}
	if f.tls != 0 {
		line.TLS = tls.VersionName(f.tls)
	}
	if o.Endpoint != nil {
		line.Endpoint, line.Tries = o.Endpoint.Name, o.Retries+1
	}
	switch o.Reason {
	case engine.ReasonDial, engine.ReasonLost, engine.ReasonReset, engine.ReasonRefused, engine.ReasonBadResponse, engine.ReasonBlamed, engine.ReasonTooLarge:
		if o.Err != nil { // not of HTTP/1.1
			line.Cause = o.Err.Error()
			line.Cause = line.Cause[:min(len(line.Cause), maxCause)]
		}
	}
	switch {
	case line.End != "":
	case f.gaveUp:
		line.End = string(engine.ReasonClientLost)
	case x.own != nil:
		line.End = endRefused
	default:
		line.End = endComplete
	}
	if d.User != nil {
		line.User = d.User.GetName()
	}
	if d.Impersonator != nil {
		line.Impersonator = d.Impersonator.GetName()
	}
	if d.Entry != nil {
		line.APIService = d.Entry.Name
	}
	return line
}
