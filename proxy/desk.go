package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// desk has the queues for costly decisions: long heads, certificate chains, and requests over HTTP/2 that wait for a
// look-up, apart for owners of tokens: rules know them whatever else of theirs waits. Who finds a queue full gets 429.
// At most half of the processors work on heads and chains, so that strangers cannot use all of them. Chains have a
// queue beside that of heads: behind a load balancer all have one address, and one may send long heads without end.
type desk struct{ heads, chains, parked, owners *bound.Queue }

func newDesk() desk {
	heads := bound.NewQueue(max(1, runtime.GOMAXPROCS(0)/2), maxAtDesk)
	parked := bound.NewApart(parkedAtOnce, int(min(maxParked, debug.SetMemoryLimit(-1)/16))) // in a small container
	return desk{heads: heads, chains: heads.Beside(), parked: parked, owners: parked.Beside()}
}

const (
	// parkedAtOnce: a source has a quarter of it decided at once, a connection of strangers a sixteenth, as many as a
	// user's reviews. More would wait for those anyway, and thousands that finish together would starve the loop.
	parkedAtOnce = 256
	// maxParked limits the bytes of parked requests, as a 16th of the memory limit does. A source may use a quarter, a
	// connection a sixteenth, twice the limit for the heads of its streams: a head still waits after its stream was
	// reset or its connection has ended.
	maxParked  = 128 << 20
	parkedSize = 5 << 10 // charged for a parked request in addition to its head: a goroutine's stack
	maxAtDesk  = 1024    // limits waiting decisions of each kind. A connection may use a sixteenth: 64 heads of 256 KB
	// quickHead and quickQuery limit the head that is decided on the engine's loop: 16 KiB hold a token of 4 KB and
	// three times as much again. The limit for queries is lower because selectors are parsed.
	quickHead, quickQuery = 16 << 10, 1 << 10
)

// costly reports whether a head is too long to be decided on the loop.
func (h *Head) costly() bool { return h.Size > quickHead || len(h.RawQuery) > quickQuery }

// turn waits for a turn at the desk, in one of its queues.
func turn(ctx context.Context, q *bound.Queue, h *Head) (leave func(), err error) {
	if leave, err = q.Enter(ctx, bound.Stranger(h.Remote), 1); err != nil {
		err = errBusy("the front door")
	}
	return leave, err
}

// decideParked decides on a goroutine that may block, and ends with the look-ups' own timeouts. A panic there would end
// the process, for example one caused by a stranger's certificate chain (CVE-2025-58188).
func (l *frames) decideParked(x *exchange) (plan engine.Plan) {
	limit, q, unneeded := parkTimeout, l.p.desk.parked, x.decision.Err == needBearer //nolint:errorlint // not wrapped
	if unneeded {
		limit, q = callerTime, l.p.desk.owners
	}
	ctx, cancel := context.WithDeadline(context.Background(), x.head.Arrived.Add(limit))
	defer cancel()
	n, c := parkedSize+x.head.Size, &x.decision.Credentials
	// An accepted token is a source of its own while its user is not known, wherever the request
	// goes: bad tokens may come over the same connection. The pool is decided again afterwards.
	x.decision.Pool = l.p.cfg.Authn.Pool(c)
	l.memory.Add(int64(n)) // also while it waits: its stream may have ended
	defer l.memory.Add(-int64(n))
	leave, err := q.Enter(ctx, x.decision.source(x.head), n)
	switch {
	// Not for want of room, which is taken by requests of the same source: whoever fills it would be unknown at will.
	case err != nil && !full(err) && unneeded && !l.p.cfg.Authn.Answering(callerTime):
		x.decision.learned, leave = &learned{caller: *c, bearer: true}, func() {}
		l.p.metrics.unknown.Inc()
	case err != nil: // recorded like any other; its user may be unknown
		busy := errBusy("the front door")
		x.decision.refuse(busy)
		x.startRecords()
		x.received()
		return x.refuse(busy)
	}
	defer leave()
	defer func() {
		if v := recover(); v != nil {
			l.p.log.Error("deciding panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			x.held.leave()
			x.leave()
			x.decision.learned = &learned{err: errPanicked} // for what still lacks a look-up
			plan = x.offEngine()
		}
	}()
	l.p.decideOffLoop(ctx, &x.decision, x.head, &x.front.conn)
	return l.plan(x)
}

const parkTimeout = 25 * time.Second // limits a stream's wait for a TokenReview and a SubjectAccessReview of 10 s each

// Need is what a decision lacks, because finding it out waits or takes long. It is an error: a refusal.
type Need uint8

const (
	needCertificates Need = iota + 1 // to be verified
	needIssuer                       // of a long token
	needUser                         // a TokenReview
	needVerdict                      // a SubjectAccessReview
	needBearer                       // a TokenReview, for rules of the policy, see askBearer
)

func (Need) Error() string { return "the decision lacks a look-up" }

// learned is what was looked up for a request, with the questions: CAs or the table may have
// changed since. All decisions of the request take it, even if no cache has kept it.
type learned struct {
	caller  authn.Credentials
	user    user.Info
	bearer  bool // that of caller, or nil, is what is known for rules
	asked   *authz.Attributes
	verdict authz.Decision
	err     error // of the last look-up
	why     error // err's cause, for Explain; a client must not see it
}

const maxLookUps = 8 // twice the number of Needs: CAs or issuers may change meanwhile

// settle decides on a goroutine that may wait: it looks up what decide (p.decide, or a part) lacks, and calls it again.
func (p *Proxy) settle(ctx context.Context, d *Decision, h *Head, c *authn.Conn, decide func() error) error {
	for range maxLookUps {
		err := decide()
		need, lacks := err.(Need) //nolint:errorlint // nobody wraps it
		if !lacks {
			return err
		}
		d.learned = cmp.Or(d.learned, new(learned))
		if l := d.learned; l.err == nil {
			l.err = p.lookUp(ctx, need, d, h, c)
		}
		if d.learned.err != nil {
			return d.learned.err
		}
	}
	return errAuthenticating
}

// decideOffLoop decides on a goroutine that may wait. It decides a long head at the desk.
func (p *Proxy) decideOffLoop(ctx context.Context, d *Decision, h *Head, c *authn.Conn) {
	if err := p.settle(ctx, d, h, c, func() error {
		if h.costly() {
			leave, err := turn(ctx, p.desk.heads, h)
			if err != nil {
				return err
			}
			defer leave()
		}
		return p.decide(d, h, c, time.Time{})
	}); err != nil {
		d.refuse(err)
	}
}

// permit is authorize on a goroutine that may wait.
func (p *Proxy) permit(ctx context.Context, d *Decision) error {
	return p.settle(ctx, d, nil, nil, func() error { return p.authorize(d) })
}

// lookUp finds out what a decision lacks. Its error refuses the request.
func (p *Proxy) lookUp(ctx context.Context, n Need, d *Decision, h *Head, c *authn.Conn) (err error) {
	unknown := errAuthorizing
	switch l := d.learned; n {
	case needCertificates:
		return p.cfg.Authn.Verify(c, func() (func(), error) { //nolint:wrapcheck // turn's
			return turn(ctx, p.desk.chains, h)
		})
	case needIssuer:
		leave, err := turn(ctx, p.desk.heads, h) // a stranger's token of 180 KB takes 4 ms
		if err != nil {
			return err
		}
		defer leave()
		d.issuer = p.cfg.Authn.FindIssuer(c, &d.Credentials)
	case needBearer:
		err = p.askBearer(ctx, d, h)
	case needUser:
		l.caller, unknown = d.Credentials, errAuthenticating
		if l.user, err = p.cfg.Authn.Review(ctx, &l.caller, bound.Stranger(h.Remote)); err != nil {
			p.log.Debug("authenticating", "err", err)
		}
	case needVerdict:
		a := d.attributes()
		if l.verdict, err = p.cfg.Authz.Authorize(ctx, &a); err == nil {
			l.asked = &a
		} else if !full(err) {
			p.log.Debug("authorizing", "user", a.User.GetName(), "err", err)
		}
	}
	d.learned.why = err
	switch {
	case err == nil:
		return nil
	case full(err):
		return errReviews
	case errors.Is(err, authn.ErrUnauthenticated):
		return errUnauthorized
	}
	return unknown
}
