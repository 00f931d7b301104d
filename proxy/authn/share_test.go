package authn

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A flood of strangers fills their queue, and does not keep those waiting who are known.
func TestRegularsDoNotWaitForStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthenticator(t, Config{TokenTTL: time.Second, Review: func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "good" {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
			}
			<-ctx.Done() // of a stranger nothing is heard
			return nil, false, ctx.Err()
		}})
		must.Get(a.Review(t.Context(), credentials(a, "good"), ""))(t)
		time.Sleep(2 * time.Second) // until it must be asked again
		for i := range maxWaiting {
			go func() { _, _ = a.Review(t.Context(), credentials(a, fmt.Sprintf("bad-%d", i)), "") }() // ends with its timeout
		}
		synctest.Wait()
		if _, err := a.Review(t.Context(), credentials(a, "another"), ""); !errors.Is(err, bound.ErrFull) {
			t.Errorf("a stranger too many: %v", err)
		}
		stranger := credentials(a, "elsewhere")
		stranger.From.Address = "10.0.0.2"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Review(ctx, stranger, ""); !errors.Is(err, context.DeadlineExceeded) { // he is heard, though not answered
			t.Errorf("a stranger from elsewhere: %v", err)
		}
		begun := time.Now()
		if _, err := a.Review(t.Context(), credentials(a, "good"), ""); err != nil || time.Since(begun) > 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		time.Sleep(time.Minute)
	})
}

// Nobody is asked for a request whose time is over: it may have waited for others.
func TestNoReviewInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := false
		a := newAuthenticator(t, Config{Review: func(context.Context, string) (*authenticator.Response, bool, error) {
			asked = true
			return nil, false, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.Review(ctx, credentials(a, "new"), "")
		synctest.Wait()
		if asked || !errors.Is(err, context.Canceled) {
			t.Errorf("asked %v, and then %v", asked, err)
		}
	})
}
