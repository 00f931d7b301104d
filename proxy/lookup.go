package proxy

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
)

// Need is what a decision lacks, because finding it out waits or takes long. It is an error: a
// request that lacks something is refused.
type Need uint8

const (
	needCertificates Need = iota + 1 // to be verified
	needIssuer                       // of a long token
	needUser                         // a TokenReview
	needVerdict                      // a SubjectAccessReview
)

func (Need) Error() string { return "the decision lacks a look-up" }

// learned is what was looked up for a request, with the questions: CAs or the table may have
// changed since. All decisions of the request take it, even if no cache has kept it.
type learned struct {
	caller  authn.Credentials
	user    user.Info
	asked   *authz.Attributes
	verdict authz.Decision
	err     error // of the last look-up
}

// maxLookUps is twice the number of Needs: CAs or issuers may change meanwhile.
const maxLookUps = 8

// settle decides on a goroutine that may wait: it looks up what decide lacks, and calls it again.
// decide is p.decide or a part of it.
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
	err := p.settle(ctx, d, h, c, func() error {
		if h.costly() {
			leave, err := turn(ctx, p.desk.heads, h)
			if err != nil {
				return err
			}
			defer leave()
		}
		return p.decide(d, h, c, time.Time{})
	})
	if err != nil {
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
		return p.cfg.Authn.Verify(c, func() (func(), error) { return turn(ctx, p.desk.chains, h) }) //nolint:wrapcheck // turn's
	case needIssuer:
		leave, err := turn(ctx, p.desk.heads, h) // a stranger's token of 180 KB takes 4 ms
		if err != nil {
			return err
		}
		defer leave()
		d.issuer = p.cfg.Authn.FindIssuer(c, &d.Credentials)
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
			p.log.Warn("authorizing", "user", a.User.GetName(), "err", err)
		}
	}
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
