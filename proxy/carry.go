package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// carry forwards a request of an HTTP/1.1 client through the engine, which treats it like a request over HTTP/2.
func (x *exchange) carry(w http.ResponseWriter, r *http.Request, from bound.Source) {
	if err := x.p.enter(&x.held, &x.decision, x.upstream, from); err != nil {
		x.noPlace(w, r, err)
		return
	}
	x.bind()
	if r.ProtoMajor == 1 && x.decision.Action == ToLocal && x.stay.Leaves() {
		w.Header().Set("Connection", "close") // as GOAWAY over HTTP/2
	}
	plan := x.plan()
	var returned sync.Once // afterwards, the deadline would be the next request's
	defer returned.Do(func() {})
	plan.Done = func(o engine.Outcome) {
		x.carried(&o, time.Since(x.head.Arrived))
		x.ended.o.Store(&o)
		if o.Reason != engine.ReasonNone && o.Status > 0 {
			go returned.Do(func() { x.p.hasten(w) }) // off the loop; it ends at once
		}
	}
	interims := interimsOf(r, w, &x.decision)
	x.noteSent()
	res, err := x.p.frames.server.RoundTrip(r, &x.head.Head, plan, interims.relay)
	interims.end()
	var failure *engine.Failure
	switch {
	case err == nil:
		x.relay(w, res)
	case errors.As(err, &failure) && failure.Answer != nil:
		failure.Answer.ServeHTTP(w, r)
	default: // maybe after the response had begun
		x.forwardFailed(w, r, err)
	}
}

// uploaded is a client's body that other goroutines may read, and that they may close at any time: net/http's Close
// blocks while a Read is in progress, which a client can prolong. end must be called before the handler returns.
type uploaded struct {
	io.ReadCloser
	w        http.ResponseWriter
	read     atomic.Int64 // bytes
	ended    atomic.Bool  // read to its end, or failed
	lent     bool         // its request was sent, so others may read
	answered bool         // the request was answered
}

func (b *uploaded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	if err != nil {
		b.ended.Store(true)
		if err != io.EOF { //nolint:errorlint // readers do not wrap io.EOF
			err = fmt.Errorf("%w: %w", backend.ErrBody, err)
		}
	}
	return n, err //nolint:wrapcheck // io.EOF must stay unwrapped
}

const uploadRest = 5 * time.Second // how long end waits for a Read in progress after the response

// end closes the body: no Read may outlive the handler (golang/go#46866), and net/http's Close
// waits for it. Meanwhile the client already has its response.
func (b *uploaded) end() {
	if b.ReadCloser == http.NoBody || !b.lent || b.ended.Load() {
		return // nothing reads
	}
	control := http.NewResponseController(b.w)
	if b.answered {
		_ = control.Flush()
	}
	_ = control.SetReadDeadline(time.Now().Add(uploadRest))
	_ = b.Close()
	_ = control.SetReadDeadline(time.Time{})
}

// Fetch sends a request of this process, by a Stay to the local apiserver, outside all limits.
func (p *Proxy) Fetch(u *backend.Upstream, r *http.Request,
	longRunning bool, by *backend.Stay) (*http.Response, error) {
	if u == nil {
		return nil, backend.Unreachable()
	}
	if err := u.Learn(r.Context(), 0); err != nil {
		return nil, err //nolint:wrapcheck // names the backend
	}
	if !u.HTTP2() {
		return u.RoundTrip(r, longRunning, by) //nolint:wrapcheck // as above
	}
	plan := u.Plan(false, by)
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	plan.LongRunning, plan.Again = longRunning, reads && !longRunning
	plan.Done = func(o engine.Outcome) {
		if o.Answer > 0 && !longRunning {
			u.Observe(o.Endpoint.Name, o.Answer)
		}
	}
	return p.frames.server.RoundTrip(r, &headOf(r, time.Now()).Head, plan, nil) //nolint:wrapcheck // as above
}

// relay copies a backend's response to a client of net/http. It aborts one that would look complete without being so.
func (x *exchange) relay(w http.ResponseWriter, res *http.Response) {
	defer res.Body.Close()
	h := w.Header()
	for key, values := range res.Header {
		if own := h[key]; own != nil {
			values = append(own, values...)
		}
		h[key] = values
	}
	announced := map[string]bool{}
	for key := range res.Trailer {
		if len(announced) == maxListed { // the others come without
			break
		}
		announced[key] = true
		h.Add("Trailer", key)
	}
	w.WriteHeader(res.StatusCode)
	err := x.relayBody(w, res)
	if err == nil {
		err = x.decision.clean(res.Trailer)
	}
	if err != nil {
		x.p.log.Debug("relaying a response", "apiservice", x.decision.name(), "audit", x.auditID, "err", err)
		panic(http.ErrAbortHandler)
	}
	if len(res.Trailer) > 0 {
		_ = http.NewResponseController(w).Flush() // else net/http sends a short body without trailers
	}
	for key, values := range res.Trailer {
		if !announced[key] {
			key = http.TrailerPrefix + key
		}
		h[key] = values
	}
}

// relayBody passes on what has come. A body of unknown length is flushed whenever no more of it is at hand, because the
// client waits for it, as for events. One of declared length has a moment to be complete: it then takes one packet.
func (x *exchange) relayBody(w http.ResponseWriter, res *http.Response) error {
	head, memory := wire.TextHead{}, x.p.frames.memory
	head.Count(res.Header)
	if n := head.Answer(); n > 0 {
		if !memory.Hold(n, hold.Head) {
			return errManyFields
		}
		defer memory.Add(-n)
		_ = http.NewResponseController(w).Flush() // while it is counted; writing has the error, too
	}
	buf := x.p.copies.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer x.p.copies.Put(buf)
	body, _ := res.Body.(interface{ AtHand() bool })
	var f flusher
	defer f.wait(nil)
	for left := res.ContentLength; ; {
		if body == nil || !body.AtHand() {
			if res.ContentLength < 0 {
				if err := http.NewResponseController(w).Flush(); err != nil {
					return err
				}
			} else {
				f.wait(w)
			}
		}
		n, err := res.Body.Read(*buf)
		f.wait(nil)
		if n > 0 {
			if _, err := w.Write((*buf)[:n]); err != nil {
				return err //nolint:wrapcheck // an error of the client
			}
			left -= int64(n)
		}
		switch {
		case err == io.EOF, err != nil && left == 0: // all that was declared has come
			return nil
		case err != nil:
			if e := x.ended; e != nil && e.client.Err() == nil {
				e.broke(cmp.Or(reasonOf(err), engine.ReasonLost))
			}
			return err //nolint:wrapcheck // an error of the backend
		}
	}
}

// flusher flushes a response whose next bytes are late. Stopping its timer would cost more than a few calls in vain.
type flusher struct {
	mu    sync.Mutex // guards what follows, and the response while late is set
	timer *time.Timer
	late  http.ResponseWriter // nil while nothing is waited for
}

// flushAfter is longer than servers take between a head and a body that is ready, and shorter than anybody notices.
const flushAfter = 5 * time.Millisecond

// wait says what is flushed if the next bytes are late, before a Read. Nil says that they have come.
func (f *flusher) wait(w http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late = w; w != nil && f.timer == nil { // not set again: the first of many short waits counts
		f.timer = time.AfterFunc(flushAfter, f.flush)
	}
}

func (f *flusher) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer = nil; f.late != nil {
		_ = http.NewResponseController(f.late).Flush() // the next Write has its error
	}
}

// exchange is one request and its response, over either protocol.
type exchange struct {
	p        *Proxy
	head     *Head
	front    *slot         // the client's connection
	stay     *backend.Stay // where the connection's requests go; may be nil
	decision Decision
	upstream *backend.Upstream // carries the request once it is forwarded
	relayed  bool              // the request is for the health relay
	parked   bool              // over HTTP/2: decided while its stream may end
	held     place
	places   [3]bound.Place // of the asker's rule, the rule and the dry run, see admit
	auditID  string
	agent    string        // the client's User-Agent if the fields of head are dropped
	close    func()        // set while a long-running request is counted as open
	span     *tracing.Span // nil means no tracing
	event    *audit.Event  // nil means no audit log, that its policy leaves the request out, or that late is set
	// late is set if the local apiserver will record the request. It is recorded here if that gets none, or no caller.
	late   *audit.Request
	events events       // of the body of a long-running response
	page   http.Handler // answers instead of Config.Pages if it is not nil
	own    error        // with which this process has answered. Nil means that it has not
	ended  *ended       // the outcome of a request that ServeHTTP forwards, else nil

	// Callbacks of a plan, set by bind; over HTTP/2 Frames replaces accept, and sets done, and they are used again.
	remove   func(string) bool
	withhold func(string) bool
	accept   func(int, bool) http.Handler
	fail     func(engine.Outcome) http.Handler
	done     func(engine.Outcome)
}

func (x *exchange) bind() {
	x.remove = x.removes
	// Trailer is only an announcement (RFC 9110 §6.6.2).
	x.withhold = func(name string) bool { return name != "trailer" && x.decision.withholds(name) }
	x.accept = x.onResponse
	x.fail = func(o engine.Outcome) http.Handler {
		return x.answer(x.decision.failure(&engine.Failure{Outcome: o}))
	}
}

// reach chooses the local apiserver for a request: another than the connection's if that lacks what it asks for.
func (x *exchange) reach() {
	if d, local := &x.decision, x.p.cfg.Local; d.Action == ToLocal && (!d.Request.IsResourceRequest || !local.Alike()) {
		x.stay = local.For(x.stay, d.Request.what())
	}
}

// sends returns which of the client's fields the backend does not get, given removes, and which
// others it gets. The span replaces the client's.
func (x *exchange) sends(removes func(string) bool) (remove func(string) bool, set []hpack.HeaderField) {
	if x.span == nil {
		return removes, x.decision.Set
	}
	return func(name string) bool { return tracing.Carries(name) || removes(name) }, x.span.Fields(x.decision.Set)
}

func (x *exchange) plan() engine.Plan {
	d := &x.decision
	remove, set := x.sends(x.remove)
	// The method, not the verb: the verb of a path is in lower case, and get may stand for gET.
	again := x.head.Method == http.MethodGet || x.head.Method == http.MethodHead
	p := x.upstream.Plan(d.Request.proxied(), x.stay)
	from := d.source(x.head)
	p.Owner = cmp.Or(from.User, from.Address)
	p.Authority, p.Remove, p.RemoveResponse, p.Set = d.host(x.head), remove, x.withhold, set
	p.Deadline, p.LongRunning, p.Finite = d.Timeout, d.LongRunning, x.finite()
	p.Resumes = d.Action == ToLocal && d.Request.Verb == "watch" // a remote's is reset, as by kube-aggregator
	p.Again, p.Accept, p.Fail = again && !d.LongRunning, x.accept, x.fail
	return p
}

// finite returns Plan.Finite, for all but watches: a download by the verb proxy, and a log, also a followed one. To
// whoever waits for a pod with kubectl logs -f, its end says that the pod has ended.
func (x *exchange) finite() bool { return x.decision.Request.Verb != "watch" }

// onResponse is called for every final response head. A handler answers instead of the backend.
func (x *exchange) onResponse(status int, leads bool) http.Handler {
	d := &x.decision
	if d.Action == ToLocal {
		x.p.cfg.Authn.Seen(&d.Credentials, status)
		if err := x.p.rejectedOwn(d, status); err != nil {
			return x.answer(err)
		}
	} else if x.p.rejects(status, leads) {
		return x.answer(errRedirect(d.Entry.Name))
	}
	return nil
}

// answer returns a handler that answers with err. It may run after the request has ended.
func (x *exchange) answer(err error) http.Handler {
	x.own = err
	p, id := x.p, x.auditID
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Audit-Id", id)
		p.browsers.sign(w.Header(), req)
		p.writeError(w, req, err)
	})
}

// carried is called with the outcome of a request that the engine has forwarded, and its duration since its head.
func (x *exchange) carried(o *engine.Outcome, took time.Duration) {
	x.held.leave() // first, so that no panic costs a place
	if o.Answer > 0 && !x.decision.LongRunning {
		x.upstream.Observe(o.Endpoint.Name, o.Answer)
		x.upstream.Finish(took)
	}
}
