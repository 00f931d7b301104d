package etcd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// distrust is sent to when klog reports an etcd whose certificate cannot be verified.
var distrust = make(chan struct{}, 1)

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
	if err := create(t, open(t, Config{Endpoints: kv.Endpoints(), CAFile: caFile, CertFile: client, KeyFile: clientKey}), "v1.a.io"); err != nil {
		t.Error(err)
	}
	if err := create(t, open(t, Config{Endpoints: kv.Endpoints(), CAFile: caFile}), "v1.b.io"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a certificate: %v", err)
	}
	// An etcd whose CA is unknown is reported, and accepted as soon as its CA is in the file.
	bundle := filepath.Join(dir, "bundle")
	write := func(ca *pki.CA) {
		must.Do(t, os.WriteFile(bundle, ca.PEM(), 0o600))
	}
	write(pki.NewCA("another"))
	s := open(t, Config{Endpoints: kv.Endpoints(), CAFile: bundle, CertFile: client, KeyFile: clientKey})
	<-distrust
	write(ca)
	for err := create(t, s, "v1.c.io"); err != nil && !apierrors.IsAlreadyExists(err); err = create(t, s, "v1.c.io") {
		<-time.After(50 * time.Millisecond)
	}
}
