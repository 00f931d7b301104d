package etcd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/klog/v2"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Clients are told to come back when etcd is away, slow, overloaded or full.
func TestUnavailable(t *testing.T) {
	for code, want := range map[codes.Code]bool{codes.Unavailable: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.Internal: false} {
		err := new(bounded).within(asked(t), false, func(context.Context) error { return status.Error(code, "") })
		if _, told := apierrors.SuggestsClientDelay(err); told != want || apierrors.IsServiceUnavailable(err) != want {
			t.Errorf("%s: %v", code, err)
		}
	}
	// A write is repeated only if it was not sent: whose create got no answer must not be told that the object exists.
	for text, want := range map[string]bool{"error reading from server: EOF": false, `connection error: desc = "transport: Error while dialing: dial tcp"`: true} {
		err := new(bounded).within(asked(t), true, func(context.Context) error { return status.Error(codes.Unavailable, text) })
		if _, told := apierrors.SuggestsClientDelay(err); told != want || !apierrors.IsServiceUnavailable(err) {
			t.Errorf("a write, %s: %v", text, err)
		}
	}
}

// What is too large for etcd is refused for good, and is no reason to give other requests less time.
func TestTooLarge(t *testing.T) {
	s := open(t, Config{Endpoints: testserver.RunEtcd(t, nil).Endpoints()})
	o := &apiregistration.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.a.io"}, Spec: apiregistration.APIServiceSpec{CABundle: make([]byte, 2<<20)}}
	err := s.raw.Create(asked(t), resourcePrefix+"/v1.a.io", o, &apiregistration.APIService{}, 0)
	must.Be(t, apierrors.IsRequestEntityTooLargeError(err) && s.raw.timedOut.Load() == nil, "%v", err)
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
			err := b.within(asked(t), false, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			if took := time.Since(begun); took != step.want || !apierrors.IsServiceUnavailable(err) {
				t.Errorf("request %d: %v after %s, want %s", i, err, took, step.want)
			}
		}
	})
}

// A client with a revision that etcd has not reached, as after a restore, must list again; any
// other revision is served.
func TestRevisionFromTheFuture(t *testing.T) {
	s := open(t, Config{Endpoints: testserver.RunEtcd(t, nil).Endpoints()})
	must.Do(t, create(t, s, "v1.a.io"))
	must.Soon(t, 20*time.Second, "the cache is ready", s.cached.Ready)
	now := must.Get(s.raw.now(t.Context()))(t)
	must.Do(t, s.raw.notFuture(t.Context(), fmt.Sprint(now)))
	for version, expired := range map[string]bool{"": false, "0": false, "1": false, fmt.Sprint(now): false, fmt.Sprint(now + 1000): true} {
		if err := s.Known(asked(t), version); apierrors.IsResourceExpired(err) != expired || !expired && err != nil {
			t.Errorf("from %q: %v", version, err)
		}
	}
}

// A cache that is still empty accepts every revision, without waiting.
func TestRevisionBeforeTheCache(t *testing.T) {
	s := open(t, Config{Endpoints: []string{"http://127.0.0.1:1"}})
	must.Do(t, s.Known(t.Context(), "5"))
}

var distrust = make(chan struct{}, 1) // sent to when klog reports an etcd whose certificate cannot be verified

// TestMain sets klog's logger before anything logs, because client-go may log for a while after a store has ended.
func TestMain(m *testing.M) {
	klog.SetLogger(funcr.New(func(_, args string) {
		if strings.Contains(args, "no TLS connection to etcd") && strings.Contains(args, "signed by unknown authority") {
			latest.Wake(distrust)
		}
	}, funcr.Options{}))
	os.Exit(m.Run())
}

// Etcd may require client certificates, and is verified by its CA.
func TestKeysOfEtcd(t *testing.T) {
	dir, ca := t.TempDir(), pki.NewCA("etcd")
	files := func(name string, leaf pki.Leaf) (cert, key string) {
		return must.Get2(ca.Issue(leaf).WriteFiles(dir, name))(t)
	}
	caFile, _ := must.Get2(ca.WriteFiles(dir, "ca"))(t)
	serving, servingKey := files("serving", pki.Leaf{Names: []string{"localhost", "127.0.0.1"}})
	client, clientKey := files("client", pki.Leaf{CommonName: "fairlead"})
	server := testserver.NewTestConfig(t)
	server.ListenClientUrls[0].Scheme, server.AdvertiseClientUrls[0].Scheme = "https", "https"
	server.ClientTLSInfo = transport.TLSInfo{CertFile: serving, KeyFile: servingKey, TrustedCAFile: caFile, ClientCertAuth: true}
	kv := testserver.RunEtcd(t, server)
	must.Do(t, create(t, open(t, Config{Endpoints: kv.Endpoints(), CAFile: caFile, CertFile: client, KeyFile: clientKey}), "v1.a.io"))
	must.Be(t, apierrors.IsServiceUnavailable(create(t, open(t, Config{Endpoints: kv.Endpoints(), CAFile: caFile}), "v1.b.io")), "unavailable without a certificate")
	// An etcd whose CA is unknown is reported, and accepted as soon as its CA is in the file.
	bundle := filepath.Join(dir, "bundle")
	write := func(ca *pki.CA) { must.Do(t, os.WriteFile(bundle, ca.PEM(), 0o600)) }
	write(pki.NewCA("another"))
	s := open(t, Config{Endpoints: kv.Endpoints(), CAFile: bundle, CertFile: client, KeyFile: clientKey})
	<-distrust
	write(ca)
	for err := create(t, s, "v1.c.io"); err != nil && !apierrors.IsAlreadyExists(err); err = create(t, s, "v1.c.io") {
		<-time.After(50 * time.Millisecond)
	}
}
