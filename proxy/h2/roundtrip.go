package h2

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// guest is a caller of Server.RoundTrip. Its stream ends when the response was read to its end, when
// its body is closed, or when the request's context ends.
type guest struct {
	engine.Guest // guarded by the shard's mutex, but for Came and Room
	sh           *shard
	ctx          context.Context
	request      *http.Request
	// announced are the request's trailers that are forwarded, as keys of its Trailer.
	announced []string
}

// RoundTrip forwards a request as if an HTTP/2 client had sent it and Config.Decide had returned
// the plan, whose Forward must be set. h is r's head, if the caller has made it already: of r, only
// the body, its length, the trailers and the context count then. What the plan would have a client
// answered with comes as a *Failure; if r's context ends, that is what errors.Is finds.
//
// Plan.Done is called in any case, and has returned when RoundTrip or Read returns an error.
// As with http.RoundTripper, r's body is closed, perhaps later, and the response's must be read to
// its end or closed. Interim heads go to the httptrace.ClientTrace of r's context.
func (s *Server) RoundTrip(r *http.Request, h *Head, p Plan) (*http.Response, error) {
	sh := s.shards[int(s.next.Add(1))%len(s.shards)]
	g := &guest{sh: sh, ctx: r.Context(), request: r}
	hasBody := r.Body != nil && r.Body != http.NoBody
	head, err := g.requestHead(h, hasBody, p.Remove)
	if err == nil && !sh.invite(g, &head, p) {
		err = errServerEnded
	}
	if err != nil {
		if hasBody {
			_ = r.Body.Close() // nobody has read it
		}
		if p.Done != nil {
			p.Done(Outcome{Reason: ReasonAbort, Err: err})
		}
		return nil, err
	}
	if hasBody {
		go g.upload() // ends with the body, or with the read that is under way when the stream ends
	}
	return g.answer()
}

// invite begins the stream. False: the server has ended.
func (sh *shard) invite(g *guest, h *Head, p Plan) (begun bool) {
	sh.lock()
	defer g.leave()
	if sh.ended {
		return false
	}
	begun = true // if what follows panics, too
	sh.e.Invite(&g.Guest, h, p)
	return begun
}

// requestHead makes the request's head. What the caller has made is as valid as a client's; of other
// requests what no HTTP/2 client's may have is left out, or refused.
func (g *guest) requestHead(known *Head, body bool, remove func(string) bool) (h Head, err error) {
	r := g.request
	if known != nil {
		h = *known
	} else {
		h = Head{Method: cmp.Or(r.Method, http.MethodGet), Authority: r.Host}
		h.SetTarget(r.URL.RequestURI())
		if !h.Valid() {
			return h, errBadRequest
		}
		h.Fields = requestFields(r, body)
	}
	h.ContentLength, h.EndStream = -1, !body
	if body && r.ContentLength > 0 {
		h.ContentLength = r.ContentLength
	}
	for key := range r.Trailer {
		if name := strings.ToLower(key); wire.PassesTrailer(name) && (remove == nil || !remove(name)) {
			g.announced = append(g.announced, key)
			h.Fields = append(h.Fields, hpack.HeaderField{Name: "trailer", Value: name})
		}
	}
	return h, nil
}

func requestFields(r *http.Request, body bool) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(r.Header)+2)
	for key, values := range r.Header {
		switch key {
		case "Content-Length", "Host", "Te", "Trailer":
		default:
			fields = wire.AppendField(fields, key, values)
		}
	}
	if body && r.ContentLength > 0 {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(r.ContentLength, 10)})
	}
	return fields
}

var errBadRequest = errors.New("request cannot be sent over HTTP/2")

// leave is settle for a caller's turn. It is deferred: whatever the engine does in it, the mutex is free afterwards.
func (g *guest) leave() {
	if v := recover(); v != nil {
		g.Recovered(v)
	}
	g.sh.settle()
}

// ended waits for Plan.Done, which another's turn may still have to call.
func (g *guest) ended() {
	for !g.Over() {
		<-g.Came()
	}
}

// abandon ends the stream if it has not ended yet.
func (g *guest) abandon(err error) {
	g.sh.lock()
	defer g.leave()
	g.Abort(err)
}

// guestChunk is how much of a request's body is read at a time, and held for one that does not come.
const guestChunk = 16 << 10

// upload sends the request's body.
func (g *guest) upload() {
	body := g.request.Body
	defer body.Close()
	buf := g.sh.pool.getPart()
	defer g.sh.pool.putPart(buf)
	for more := true; more; {
		n, err := body.Read(buf[:])
		for wait := true; wait; {
			if more, wait = g.pass(buf[:n], err); wait {
				<-g.Room() // which the end of the stream makes ready, too
			}
		}
	}
}

// pass takes a part of the request's body in. wait: there is no room yet.
func (g *guest) pass(p []byte, err error) (more, wait bool) {
	var trailers []hpack.HeaderField
	if err == io.EOF { //nolint:errorlint // readers do not wrap it
		trailers = g.requestTrailers()
	}
	g.sh.lock()
	defer g.leave()
	return g.Pass(p, trailers, err)
}

// requestTrailers are those of the request that are forwarded. Its body has been read to its end.
func (g *guest) requestTrailers() (trailers []hpack.HeaderField) {
	for _, key := range g.announced {
		trailers = wire.AppendField(trailers, key, g.request.Trailer[key])
	}
	return trailers
}
