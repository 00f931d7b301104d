package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A flood of strangers fills their own queue, and does not delay proven tokens. Nor do these delay
// each other, up to the limit.
func TestRegularsDoNotWaitForStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var active atomic.Int64
		a := newAuthenticator(t, Config{TokenTTL: time.Second, Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "good" {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
			}
			active.Add(1)
			defer active.Add(-1)
			<-ctx.Done() // strangers get no answer
			return nil, false, ctx.Err()
		}})
		must.Get(a.Review(t.Context(), credentials(a, "good"), ""))(t)
		time.Sleep(2 * time.Second) // until the next review is needed
		for i := range maxWaiting {
			go func() { _, _ = a.Review(t.Context(), credentials(a, fmt.Sprintf("bad-%d", i)), "") }() // ends with its timeout
		}
		synctest.Wait()
		if _, err := a.Review(t.Context(), credentials(a, "another"), ""); !errors.Is(err, bound.ErrFull) {
			t.Errorf("a stranger beyond the limit: %v", err)
		}
		busy := a.metrics.reviews.WithLabelValues("busy")
		check.Same(t, maxWaiting-maxWaiting/4+1, testutil.ToFloat64(busy), "strangers counted as refused at once")
		stranger := credentials(a, "elsewhere")
		stranger.From.Address = "10.0.0.2"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Review(ctx, stranger, ""); !errors.Is(err, context.DeadlineExceeded) { // queued, and not refused
			t.Errorf("a stranger at another address: %v", err)
		}
		begun := time.Now()
		if _, err := a.Review(t.Context(), credentials(a, "good"), ""); err != nil || time.Since(begun) > 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		time.Sleep(time.Minute)
		before := testutil.ToFloat64(busy)
		for i := range maxWaiting + 1 {
			c := credentials(a, fmt.Sprint("regular-", i))
			a.Seen(c, http.StatusOK)
			go func() { _, _ = a.Review(t.Context(), c, "") }() // ends with its timeout
		}
		synctest.Wait()
		check.Same(t, maxReviews, active.Load(), "reviews of proven tokens at once")
		check.Same(t, 1, testutil.ToFloat64(busy)-before, "proven tokens counted as refused at once")
		time.Sleep(time.Minute)
	})
}

// TokenReviews are sent to a real server with Kubernetes' own client.
func TestTokenReview(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
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
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer s.Close()
	client := must.Get(authenticationclient.NewForConfig(&rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}))(t)
	review := must.Get(TokenReview(client))(t)
	a := newAuthenticator(t, Config{Review: review})
	u, err := a.Review(t.Context(), credentials(a, "good"), "")
	if err != nil || describe(u) != describe(&user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"dev", "system:authenticated"}, Extra: map[string][]string{"k": {"v"}}}) {
		t.Errorf("%s, %v", describe(u), err)
	}
	// A plain refusal is cached; one with another error is reviewed again.
	for token, want := range map[string]int64{"bad": 1, "ended": 2} {
		before := asked.Load()
		for range 2 {
			if _, err := a.Review(t.Context(), credentials(a, token), ""); !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("%s: %v", token, err)
			}
		}
		if got := asked.Load() - before; got != want {
			t.Errorf("%s: reviewed %d times, want %d", token, got, want)
		}
	}
	if !a.Proven(credentials(a, "good").Token) || a.Proven(credentials(a, "bad").Token) {
		t.Error("a review did not prove the token, or proved an invalid one")
	}
	s.Close()
	if _, err := a.Review(t.Context(), credentials(a, "another"), ""); err == nil || errors.Is(err, ErrUnauthenticated) || strings.Contains(err.Error(), "another") {
		t.Error(err)
	}
}
