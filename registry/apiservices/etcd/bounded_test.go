package etcd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Clients are told to come back when etcd is away, slow, overloaded or full.
func TestUnavailable(t *testing.T) {
	for code, want := range map[codes.Code]bool{codes.Unavailable: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.Internal: false} {
		err := new(bounded).within(asked(t), func(context.Context) error { return status.Error(code, "") })
		if _, told := apierrors.SuggestsClientDelay(err); told != want || apierrors.IsServiceUnavailable(err) != want {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// What is too large for etcd is refused for good, and is no reason to give other requests less
// time.
func TestTooLarge(t *testing.T) {
	s := open(t, Config{Endpoints: testserver.RunEtcd(t, nil).Endpoints()})
	o := &apiregistration.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.a.io"}, Spec: apiregistration.APIServiceSpec{CABundle: make([]byte, 2<<20)}}
	err := s.raw.Create(asked(t), resourcePrefix+"/v1.a.io", o, &apiregistration.APIService{}, 0)
	if !apierrors.IsRequestEntityTooLargeError(err) || s.raw.timedOut.Load() != 0 {
		t.Errorf("%v", err)
	}
}

// After a timeout, requests to an etcd that hangs wait shortly, for a while.
func TestHungEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(bounded)
		for i, step := range []struct{ pause, want time.Duration }{
			{0, requestTimeout}, {0, shortTimeout}, {shortFor - 2*shortTimeout, shortTimeout}, {0, requestTimeout}, {0, shortTimeout},
		} {
			time.Sleep(step.pause)
			begun := time.Now()
			err := b.within(asked(t), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			if took := time.Since(begun); took != step.want || !apierrors.IsServiceUnavailable(err) {
				t.Errorf("request %d: %v after %s, want %s", i, err, took, step.want)
			}
		}
	})
}
