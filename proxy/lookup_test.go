package proxy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// An answer is used for its question only.
func TestAnswersToOtherQuestions(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	var d Decision
	must.Do(t, p.settle(t.Context(), &d, asBob(remoteGV+"/widgets", ""), nil, func() error { return p.decide(&d, asBob(remoteGV+"/widgets", ""), nil, time.Time{}) }))
	p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(context.Context, string) (*authenticator.Response, bool, error) { panic("asked") }}))(t)
	p.cfg.Authz = newTestAuthorizer(t, worldConfig{})
	must.Do(t, p.authenticate(&d))
	must.Do(t, p.authorize(&d))
	d.User = &user.DefaultInfo{Name: "carol"}
	check.Same(t, error(needVerdict), p.authorize(&d), "the verdict on another user")
	d.Credentials, _ = p.cfg.Authn.Read(nil, with("token-of-carol"), "", time.Time{})
	check.Same(t, error(needUser), p.authenticate(&d), "the user of another token")
}

// The check reviews says that reviews fail. A line for each request would fill the log while no apiserver answers.
func TestFailedReviewFillsNoLog(t *testing.T) {
	var log logbook.Book
	_, p := thinker(t, worldConfig{reviewed: func() error { return errors.New("refused") }})
	p.log = slog.New(slog.NewTextHandler(&log, nil))
	d, _ := p.decision(t.Context(), asBob(remoteGV+"/widgets", ""), nil, true)
	check.Same(t, http.StatusServiceUnavailable, statusOf(d.Err), "status")
	check.Same(t, "", log.String(), "the log")
}

// A user whose name HTTP would change reaches nobody. A log that is blocked holds up neither the decision nor the loop,
// and its requests do not fill the log.
func TestUserThatCannotBeAsserted(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	h := asBob(remoteGV+"/widgets", "")
	synctest.Test(t, func(t *testing.T) {
		log := make(logbook.Lines, 20)
		p.log = slog.New(slog.NewTextHandler(log, nil))
		for range 20 {
			p.finish(&Decision{User: &user.DefaultInfo{Name: "bob\nroot"}}, h)
			time.Sleep(time.Second)
		}
		check.Same(t, 2, len(log), "lines of 20 requests in 20 s")
		time.Sleep(time.Minute)
	})
	read, log := io.Pipe()
	defer read.Close()
	p.log = slog.New(slog.NewTextHandler(log, nil))
	d, _ := p.decision(t.Context(), of(http.MethodGet, remoteGV+"/widgets", "", with("token-of-bob\nroot")), nil, true)
	check.Same(t, true, d.Action == Refuse && apierrors.IsUnauthorized(d.Err), "refused: %v as %v (%v)", d.Action, d.User, d.Err)
}

// CAs that change with every look give no request a place for ever.
func TestLookUpsAreBounded(t *testing.T) {
	w, p := thinker(t, worldConfig{})
	var n, generation atomic.Uint64
	p.cfg.Authn = must.Get(authn.New(authn.Config{
		Generation: func() uint64 { return generation.Add(1) },
		VerifyClient: func([]*x509.Certificate) ([][]*x509.Certificate, error) {
			n.Add(1)
			return nil, nil
		},
	}))(t)
	c := &authn.Conn{Peer: []*x509.Certificate{w.client.Issue(pki.Leaf{CommonName: "alice"}).Certificate}}
	d, known := p.decision(t.Context(), asBob("/api/v1/pods", ""), c, true)
	check.Same(t, fmt.Sprint(true, Refuse, " ", http.StatusServiceUnavailable, maxLookUps), fmt.Sprint(known, d.Action, " ", statusOf(d.Err), n.Load()), "known, what is decided, the status, and how often it was verified: %v", d.Err)
}

// The ConfigMap may come while a request with a certificate is decided. It may have the certificate's CA.
func TestCAsComeWithNames(t *testing.T) {
	w, p := thinker(t, worldConfig{})
	comes, known := false, false
	p.cfg.Authn = must.Get(authn.New(authn.Config{
		VerifyClient: func([]*x509.Certificate) ([][]*x509.Certificate, error) { return nil, nil },
		Generation:   func() uint64 { known = comes; return 0 }, // it comes once the certificate's result was looked at
		Target:       func() (*authn.HeaderNames, bool) { return nil, known },
	}))(t)
	c := &authn.Conn{Peer: []*x509.Certificate{w.client.Issue(pki.Leaf{CommonName: "alice"}).Certificate}}
	must.Do(t, p.cfg.Authn.Verify(c, func() (func(), error) { return func() {}, nil }))
	comes = true
	d := Decision{Action: ToLocal}
	check.Same(t, error(errUnfit), p.identify(&d, of("GET", "/api/v1/pods", "", nil), c, time.Time{}), "the refusal")
}

// A stranger's reviews count for its address.
func TestReviewsOfAnAddress(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
			asked.Add(1)
			<-ctx.Done()
			return nil, false, ctx.Err()
		}}))(t)
		for i := range 40 {
			h := asBob(remoteGV+"/widgets", "")
			h.Fields[0].Value, h.Remote = fmt.Sprint("Bearer ", i), fmt.Sprint("192.0.2.1:", i+1)
			go p.decision(t.Context(), h, nil, true)
		}
		synctest.Wait()
		check.Same(t, 16, asked.Load(), "reviews at once")
		time.Sleep(time.Minute) // they end with their time limit
	})
}

func statusOf(err error) int {
	var status interface{ Status() metav1.Status }
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}
