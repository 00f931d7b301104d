package main

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// installation is a namespace in which init runs.
type installation struct {
	*testing.T
	cluster *fake.Clientset
}

func (in *installation) run(names ...string) (string, error) {
	var out bytes.Buffer
	i := &initiator{secrets: in.cluster.CoreV1().Secrets("kube-system"), namespace: "kube-system", out: &out}
	err := i.run(in.Context(), names)
	return strings.ReplaceAll(out.String(), "secret/fairlead-", ""), err
}

func (in *installation) init(names ...string) string {
	in.Helper()
	return must.Get(in.run(names...))(in)
}

// leaf returns the certificate in a Secret, and a pool with the CA in the same Secret.
func (in *installation) leaf(name string) (*x509.Certificate, *x509.CertPool) {
	in.Helper()
	s := must.Get(in.cluster.CoreV1().Secrets("kube-system").Get(in.Context(), name, metav1.GetOptions{}))(in)
	chain := must.Get(certutil.ParseCertsPEM(s.Data["tls.crt"]))(in)
	pool := must.Get(certutil.NewPoolFromBytes(s.Data["ca.crt"]))(in)
	return chain[0], pool
}

func TestInit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &installation{t, fake.NewClientset()}
		check.Same(t, "ca written\nfront-proxy-client written\nserving written\n", in.init("api.example.com", "192.0.2.1"), "first run")
		proxy, ca := in.leaf("fairlead-front-proxy-client")
		asClient := x509.VerifyOptions{Roots: ca, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		must.Get(proxy.Verify(asClient))(t)
		asClient.CurrentTime = time.Now().Add(-time.Minute) // by a clock that is late
		must.Get(proxy.Verify(asClient))(t)
		asClient.CurrentTime = time.Time{}
		check.Same(t, "fairlead", proxy.Subject.CommonName, "the proxy client")
		serving, _ := in.leaf("fairlead-serving")
		for _, name := range []string{"api.example.com", "192.0.2.1"} {
			must.Get(serving.Verify(x509.VerifyOptions{Roots: ca, DNSName: name}))(t)
		}
		// Serving certificates of the common CA must not be usable as client certificates:
		// extension servers accept any client certificate of that CA with the proxy's name.
		_, err := serving.Verify(asClient)
		check.Fault(t, "incompatible key usage", err, "the serving certificate as a client's")
		check.Same(t, "ca unchanged\nfront-proxy-client unchanged\nserving unchanged\n", in.init("api.example.com", "192.0.2.1"), "second run")
		check.Same(t, "ca unchanged\nfront-proxy-client unchanged\nserving written\n", in.init("api.example.com"), "with one name less")
		time.Sleep(250 * 24 * time.Hour) // of 365: less than a third is left
		found := certs.Findings{}
		if found.CheckProxyClient([]*x509.Certificate{proxy}, nil); len(found) != 1 || strings.Contains(found[0].Message, "expire") {
			t.Errorf("lint warns of expiry before init renews: %v", found)
		}
		check.Same(t, "ca unchanged\nfront-proxy-client written\nserving written\n", in.init(), "after 250 days")
		if next, _ := in.leaf("fairlead-serving"); fmt.Sprint(next.DNSNames) != "[api.example.com]" || next.Equal(serving) {
			t.Errorf("the renewed certificate names %q", next.DNSNames)
		}
		next, ca := in.leaf("fairlead-front-proxy-client")
		check.Same(t, false, next.Equal(proxy), "the same certificate, after 250 days")
		asClient.Roots = ca
		must.Get(proxy.Verify(asClient))(t) // the previous certificate is trusted still
		authority, _ := in.leaf("fairlead-ca")
		time.Sleep(time.Until(authority.NotAfter) - 100*24*time.Hour)
		check.Same(t, "ca unchanged\nfront-proxy-client written\nserving written\n", in.init(), "before the end of the CA")
		last, _ := in.leaf("fairlead-front-proxy-client")
		check.Same(t, true, last.NotAfter.Equal(authority.NotAfter), "valid until %s, and its CA until %s", last.NotAfter, authority.NotAfter)
		check.Same(t, "ca unchanged\nfront-proxy-client unchanged\nserving unchanged\n", in.init(), "nothing that is valid for longer can be had")
	})
}

// A name that no client could verify replaces no certificate.
func TestInitRefusesURLs(t *testing.T) {
	in := &installation{t, fake.NewClientset()}
	for _, name := range []string{"https://api.example.com", "api.example.com:6443", "[2001:db8::1]", "2001:db8::1:x", "api example", ""} {
		_, err := in.run("front.example.com", name)
		check.Same(t, true, cli.IsUsage(err), "%q: error %v, want a usage error", name, err)
	}
	check.Same(t, "ca written\nfront-proxy-client written\nserving written\n", in.init("*.Example.com", "a_b", "2001:db8::1"), "the first run that was not refused")
}

// Who gives a flag of layouts wants no Secrets.
func TestInitRefusesFlagsOfLayouts(t *testing.T) {
	check.Same(t, "exit 2: --out needs --layout\n", run(t, "", "init", "--out=x"), "init --out=x")
}

// Of two that run at once, both sign with one CA: that of the first stays.
func TestInitTwiceAtOnce(t *testing.T) {
	in, first := &installation{t, fake.NewClientset()}, true
	in.init()
	in.cluster.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		early := first // the first question comes before the other one has written
		first = false
		return early, nil, apierrors.NewNotFound(corev1.Resource("secrets"), "fairlead-ca")
	})
	check.Same(t, "ca unchanged\nfront-proxy-client unchanged\nserving missing, or not by this CA: --serving-names makes it\n", in.init(), "the second one")
}

func TestInitWithoutItsCA(t *testing.T) {
	in := &installation{t, fake.NewClientset()}
	in.init("front.example.com")
	before, _ := in.leaf("fairlead-front-proxy-client")
	must.Do(t, in.cluster.CoreV1().Secrets("kube-system").Delete(t.Context(), "fairlead-ca", metav1.DeleteOptions{}))
	check.Same(t, "ca written\nfront-proxy-client written\nserving missing, or not by this CA: --serving-names makes it\n", in.init(), "another CA")
	after, _ := in.leaf("fairlead-front-proxy-client")
	check.Same(t, false, after.Equal(before), "the certificate is still the deleted CA's")
	bad := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fairlead-ca", Namespace: "kube-system"}, Data: map[string][]byte{"tls.crt": []byte("x")}}
	if _, err := (&installation{t, fake.NewClientset(bad)}).run(); err == nil || errors.Unwrap(err) == nil || !strings.Contains(err.Error(), "reading Secret fairlead-ca") {
		t.Errorf("a CA that cannot be read: %v", err)
	}
}
