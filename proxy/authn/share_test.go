package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/reviews"
)

// A flood of strangers fills their own queue, and does not delay proven tokens. Nor do these delay
// each other, up to the limit. Tokens that are verified here delay nobody whom the cluster knows.
func TestRegularsDoNotWaitForStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var active atomic.Int64
		issued := func(token string) bool { return strings.HasPrefix(token, "issued") }
		a := newAuthenticator(t, Config{TokenTTL: time.Second, Issued: issued, Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if strings.HasPrefix(token, "good") {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
			}
			active.Add(1)
			defer active.Add(-1)
			<-ctx.Done() // the others get no answer
			return nil, false, ctx.Err()
		}})
		must.Get(a.Review(t.Context(), credentials(a, "good"), bound.Source{}))(t)
		time.Sleep(2 * time.Second) // until the next review is needed
		flood := func(what string, prove bool, running, refused int) {
			for i := range maxWaiting + 1 {
				c := credentials(a, fmt.Sprint(what, i))
				if prove { // each is a source of its own
					a.Seen(c, http.StatusOK)
				}
				from := bound.Source{Address: fmt.Sprint("10.0.0.", i%5)}
				go func() { _, _ = a.Review(t.Context(), c, from) }() // ends with its timeout
			}
			synctest.Wait()
			check.Same(t, running, int(active.Load()), "reviews of %ss at once", what)
			check.Same(t, refused, int(testutil.ToFloat64(a.reviews.WithLabelValues("busy"))), "refused at once, after %ss", what)
		}
		answered := func(whose, token string) {
			begun := time.Now()
			_, err := a.Review(t.Context(), credentials(a, token), bound.Source{})
			check.Same(t, "<nil> 0s", fmt.Sprint(err, " ", time.Since(begun)), "a %s's review, and its time", whose)
		}
		flood("issued", false, maxReviews, 1)
		answered("stranger", "good2")
		flood("stranger", false, 2*maxReviews, 2)
		answered("regular", "good")
		flood("regular", true, 3*maxReviews, 3)
		time.Sleep(time.Minute)
	})
}

// TokenReviews are sent to a real server with Kubernetes' own client.
func TestTokenReview(t *testing.T) {
	var asked atomic.Int64
	server := reviews.Serve(t, "/apis/authentication.k8s.io/v1/tokenreviews", func(review *authenticationv1.TokenReview) {
		asked.Add(1)
		switch review.Spec.Token {
		case "bad":
			review.Status.Error = "invalid bearer token"
		case "ended":
			review.Status.Error = "[invalid bearer token, service account token has expired]"
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
			}}
		}
	})
	a := newAuthenticator(t, Config{Review: TokenReview(must.Get(authenticationclient.NewForConfig(server.REST))(t))})
	u := must.Get(a.Review(t.Context(), credentials(a, "good"), bound.Source{}))(t)
	want := &user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev", "system:authenticated"}, Extra: map[string][]string{"k": {"v"}}}
	check.Same(t, describe(want), describe(u), "the user")
	// A plain refusal is cached; one with another error is reviewed again.
	for token, want := range map[string]int64{"bad": 1, "ended": 2} {
		before := asked.Load()
		for range 2 {
			check.Is(t, ErrUnauthenticated, check.Err(a.Review(t.Context(), credentials(a, token), bound.Source{})), "%s", token)
		}
		check.Same(t, want, asked.Load()-before, "reviews of %s", token)
	}
	check.Same(t, [2]bool{true, false}, [2]bool{proven(a, credentials(a, "good").Token), proven(a, credentials(a, "bad").Token)}, "proven by a review: the token, and an invalid one")
	server.Close()
	_, err := a.Review(t.Context(), credentials(a, "another"), bound.Source{})
	check.Same(t, true, err != nil && !errors.Is(err, ErrUnauthenticated) && !strings.Contains(err.Error(), "another"), "without a server: %v", err)
}
