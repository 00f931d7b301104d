package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Fairlead's own clients use the current credentials of the kubeconfig, not those from the start.
func TestFollowKubeconfig(t *testing.T) {
	serving, clients := pki.NewCA("serving"), pki.NewCA("clients")
	next := pki.NewCA("next serving")
	present := serving.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, name+" "+r.Header.Get("Authorization"))
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{
			Certificates: []tls.Certificate{present}, ClientAuth: tls.RequestClientCert, ClientCAs: clients.Pool(), MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		}, nil
	}}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)

	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	text := func(ca *pki.CA, user string) []byte { return []byte(kubeconfigText(server.URL, ca, user)) }
	certified := func(name string) string { return embedded(clients.Issue(pki.Leaf{CommonName: name})) }
	kube, _, _, err := clientConfig(writeFile(t, path, string(text(serving, certified("first")))), nil)
	must.Do(t, err)
	var logged bytes.Buffer
	f, cfg := must.Get2(follow(kube, slog.New(slog.NewTextHandler(&logged, nil))))(t)
	client := must.Get(corev1client.NewForConfig(cfg))(t)
	want := func(when, name string) {
		t.Helper()
		held := f.certificate() // the one whose expiry metrics show
		if user, _, isToken := strings.Cut(name, " Bearer "); isToken && held != nil || !isToken && (len(held) != 1 || held[0].Subject.CommonName+" " != user) {
			t.Errorf("%s: the certificate in use is %v", when, held)
		}
		got, err := client.RESTClient().Get().AbsPath("/who").DoRaw(t.Context())
		if err != nil || string(got) != name {
			t.Errorf("%s: %q, %v, want %q", when, got, err, name)
		}
	}
	want("at the start", "first ")
	reload := func(data []byte) error { _, err := f.reload(path, data); return err }
	must.Do(t, reload(text(serving, certified("second"))))
	want("another embedded pair", "second ")
	if err := reload(text(serving, certified("third"))[:700]); err == nil {
		t.Error("a truncated kubeconfig was accepted")
	}
	if err := reload(text(serving, `"client-certificate-data":"bm8=","client-key-data":"bm8="`)); err == nil {
		t.Error("a mismatched key pair was accepted")
	}
	want("after a bad one", "second ")
	must.Do(t, reload(text(serving, `"token":"t1"`)))
	want("a token", "nobody Bearer t1")
	writePair(t, clients.Issue(pki.Leaf{CommonName: "file"}), dir, "user")
	must.Do(t, reload(text(serving, `"client-certificate":"user.crt","client-key":"user.key"`)))
	want("files beside the kubeconfig", "file ")
	present = next.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()
	server.CloseClientConnections()
	must.Do(t, reload(text(next, certified("fourth"))))
	want("another CA", "fourth ")
	if logged.Len() > 0 {
		t.Errorf("logged %s", logged.Bytes())
	}
	must.Do(t, reload(bytes.ReplaceAll(text(next, certified("fifth")), []byte(server.URL), []byte("https://192.0.2.1:6443"))))
	want("another server: the first one counts", "fifth ")
	if !strings.Contains(logged.String(), "restart to follow it") {
		t.Errorf("logged %q", logged.String())
	}
}

func TestClusterName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	for text, want := range map[string]string{
		"{clusters: [{name: prod-1, cluster: {server: https://a}}], contexts: [{name: x, context: {cluster: prod-1}}], current-context: x}": "prod-1",
		"{current-context: x}": "", "no: [yaml": "",
	} {
		check.Same(t, want, clusterName(writeFile(t, file, text)), "%s", text)
	}
	check.Same(t, "", clusterName(""), "a pod's configuration")
}

// The operator's own times stay.
func TestPingOften(t *testing.T) {
	const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
	t.Setenv(idle, "") // so that it is restored
	must.Do(t, os.Unsetenv(idle))
	t.Setenv(ping, "20")
	pingOften()
	check.Same(t, ownReadIdle+" 20", os.Getenv(idle)+" "+os.Getenv(ping), "times")
}
