package authn

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

const (
	reviewTimeout = 10 * time.Second // limits one TokenReview with its retries, as upstream
	defaultTTL    = 10 * time.Second // k8s.io/apiserver's: of delegating options, and of JWTs, whatever the flag says
	// maxReviews limits the concurrent TokenReviews. One takes a millisecond or two, so these are tens of thousands a
	// second, and a flood of bad tokens loads the local apiserver no more than a busy controller does.
	maxReviews = 64
	// maxWaiting limits the running and waiting ones. More are refused at once. Both limits apply to strangers, with a
	// quarter for one address, and separately to proven tokens, and to those of Config.Issued.
	maxWaiting = 4096
	// perPlace: a token takes one more for each. Its review may outlive the requests whose heads have counted it.
	perPlace = 8 << 10
)

var errBadToken = fmt.Errorf("%w: invalid bearer token", ErrUnauthenticated)

// TokenReview returns a Config.Review that asks the local apiserver, with the retries of k8s.io/apiserver's client
// (five, from 500 ms). Unlike that, it tells a refused token from a failed review: kube-apiserver gives its reason.
func TokenReview(
	client authenticationv1client.AuthenticationV1Interface,
) func(context.Context, string) (*authenticator.Response, bool, error) {
	// invalidToken is kube-apiserver's reason if no authenticator knows a token; another may mean that one cannot tell.
	const invalidToken = "invalid bearer token"
	reviews, backoff := client.TokenReviews(), *webhook.DefaultRetryBackoff()
	return func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		var review *authenticationv1.TokenReview
		err := webhookutil.WithExponentialBackoff(ctx, backoff, func() (err error) {
			ask := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
			review, err = reviews.Create(ctx, ask, metav1.CreateOptions{})
			return err
		}, webhookutil.DefaultShouldRetry)
		if apierrors.IsInvalid(err) { // by the token: the review did not fail
			return nil, false, errBadToken
		} else if err != nil {
			return nil, false, fmt.Errorf("asking the local apiserver: %w", err)
		}
		s := &review.Status
		if !s.Authenticated && s.Error != "" && s.Error != invalidToken {
			return nil, false, fmt.Errorf("%w: %s", errBadToken, s.Error)
		} else if !s.Authenticated {
			return nil, false, nil
		}
		extra := make(map[string][]string, len(s.User.Extra))
		for k, v := range s.User.Extra {
			extra[k] = v
		}
		u := &user.DefaultInfo{Name: s.User.Username, UID: s.User.UID, Groups: s.User.Groups, Extra: extra}
		return &authenticator.Response{User: u}, true, nil
	}
}

// Cached returns the user of credentials without I/O, for requests whose caller Fairlead must know. A nil user with
// known means refused: 401. If known is false, Review must be called. path is the decoded path, for AnonymousPaths.
func (a *Authenticator) Cached(c *Credentials, path string) (u user.Info, known bool) {
	switch c.Kind {
	case KindFrontProxy, KindCertificate, KindIssued:
		return c.User, true
	case KindNone:
		if a.cfg.Anonymous && (len(a.cfg.AnonymousPaths) == 0 || slices.Contains(a.cfg.AnonymousPaths, path)) {
			return a.nobody, true
		}
	case KindToken:
		if a.cfg.Review == nil {
			break
		}
		for _, t := range [...]Token{c.Token, c.second} {
			if t.none() {
				continue
			}
			switch id, ok, _ := a.remembered(t, c.Now); {
			case !ok:
				return nil, false
			case id != nil:
				a.hits.Inc()
				return id, true
			}
		}
		a.hits.Inc()
	}
	return nil, true
}

// Nobody is who has no credentials.
func (a *Authenticator) Nobody() user.Info { return a.nobody }

// Review asks the local apiserver for the user of a token that Cached does not know. A stranger's review counts for
// from: no address may take all places of the queue. ErrUnauthenticated means that the caller is refused; any other
// error means that the review failed, and the request must be refused, too.
func (a *Authenticator) Review(ctx context.Context, c *Credentials, from bound.Source) (user.Info, error) {
	u, err := a.shared(ctx, c.Token, from)
	if err == nil || c.second.none() {
		return u, err
	}
	u, again := a.shared(ctx, c.second, from)
	if again != nil {
		return nil, errors.Join(err, again)
	}
	return u, nil
}

// shared reviews a token once for all concurrent callers. It outlives a caller that gives up; its timeout ends it.
func (a *Authenticator) shared(ctx context.Context, token Token, from bound.Source) (user.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("reviewing token: %w", err)
	}
	//nolint:contextcheck // callers share it: it must not end, nor use a recorder or a span, with the first of them
	ch := a.flight.DoChan(token.Secret(), func() (any, error) { return a.review(token, from) })
	select {
	case r := <-ch:
		if r.Err != nil { // r.Val is a nil identity, and no nil user.Info
			return nil, r.Err
		}
		return r.Val.(*identity), nil //nolint:forcetypeassert // of review
	case <-ctx.Done():
		return nil, fmt.Errorf("reviewing token: %w", ctx.Err())
	}
}

// Answering reports whether the local apiserver has answered a review that began within the last d.
func (a *Authenticator) Answering(d time.Duration) bool {
	return time.Since(ptr.Deref(a.began.Load(), time.Time{})) < d
}

// remembered returns the cached result for a token, if ok. The zero now means time.Now.
func (a *Authenticator) remembered(token Token, now time.Time) (id *identity, ok bool, err error) {
	if e := a.known.Get(token, now); e != nil {
		return e.Value, true, nil
	}
	if a.refused.Get(token, now) != nil {
		return nil, true, errBadToken
	}
	return nil, false, nil
}

func (a *Authenticator) review(token Token, from bound.Source) (id *identity, err error) {
	defer func() { // this is a goroutine of singleflight's, where a panic would end the process
		if v := recover(); v != nil {
			a.cfg.Logger.Error("reviewing a token panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			a.reviews.WithLabelValues("error").Inc()
			id, err = nil, errors.New("reviewing token: it panicked")
		}
	}()
	// The previous review may have ended between our look-up and here.
	if id, ok, err := a.remembered(token, time.Time{}); ok {
		return id, err
	}
	q, issued := a.strangers, a.cfg.Issued != nil && a.cfg.Issued(token.Secret())
	if issued { // of a flood each may ask for keys anew: nobody's TokenReview waits for that, see Answering
		q = a.issued
	}
	if a.proven.Get(token, time.Time{}) != nil { // a flood of bad tokens must not delay proven ones
		q, from = a.regulars, bound.Source{User: token.Secret()} // its user is not cached any more
	}
	// Not a caller's context: callers share the result, and the first of them may leave.
	ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
	defer cancel()
	leave, err := q.Enter(ctx, from, 1+len(token.Secret())/perPlace)
	if err != nil {
		a.reviews.WithLabelValues("busy").Inc()
		return nil, fmt.Errorf("reviewing token: %w", bound.ErrFull)
	}
	defer leave()
	// Both are taken before the call, because the answer may be as old as that.
	began, generation, ttl := time.Now(), a.cfg.ReviewGeneration(), a.cfg.TokenTTL
	resp, ok, err := a.cfg.Review(ctx, token.Secret())
	if issued {
		ttl = min(ttl, defaultTTL)
	} else if err == nil || errors.Is(err, ErrUnauthenticated) {
		last := a.began.Load() // of a later review, if that was faster: a slow token says nothing about others
		for (last == nil || last.Before(began)) && !a.began.CompareAndSwap(last, &began) {
			last = a.began.Load()
		}
	}
	until := began.Add(ttl)
	if accepted := err == nil && ok; accepted && (resp == nil || resp.User == nil) {
		err = errors.New("it was answered without a user")
	} else if accepted && resp.User.GetName() != "" { // a JWT may have an empty claim: its sender's fault
		id = authenticated(resp)
	}
	switch {
	case err == nil && id == nil:
		keep(a.refused, token, struct{}{}, until, generation)
		err = errBadToken
		fallthrough
	case errors.Is(err, ErrUnauthenticated):
		a.reviews.WithLabelValues("refused").Inc()
		a.proven.Drop(token)
		return nil, err
	case err != nil:
		a.reviews.WithLabelValues("error").Inc()
		return nil, fmt.Errorf("reviewing token: %w", err)
	}
	a.reviews.WithLabelValues("authenticated").Inc()
	keep(a.known, token, id, until, generation)
	keep(a.proven, token, token.payer(), time.Now().Add(provenTTL), 0) // the local apiserver has accepted it
	return id, nil
}
