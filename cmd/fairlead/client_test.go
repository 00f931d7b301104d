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

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Fairlead's own clients use the current credentials of the kubeconfig, not those from the start.
func TestFollowKubeconfig(t *testing.T) {
	first, next, clients := pki.NewCA("serving"), pki.NewCA("next serving"), pki.NewCA("clients")
	present := first
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, name+" "+r.Header.Get("Authorization"))
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair := present.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}, nil
	}}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)

	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	certified := func(name string) string { return embedded(clients.Issue(pki.Leaf{CommonName: name})) }
	kube, _, _, err := clientConfig(writeFile(t, path, kubeconfigText(server.URL, first, certified("first"))), nil, false)
	must.Do(t, err)
	var logged bytes.Buffer
	f, cfg := must.Get2(follow(kube, slog.New(slog.NewTextHandler(&logged, nil))))(t)
	client := must.Get(corev1client.NewForConfig(cfg))(t)
	must.Get2(clients.Issue(pki.Leaf{CommonName: "file"}).WriteFiles(dir, "user"))(t)
	again := kubeconfigText(server.URL, first, certified("second"))
	for _, step := range []struct {
		name, kubeconfig string
		refused          bool
		as, logs         string
	}{
		{"another embedded pair", again, false, "second ", ""},
		{"a proxy, which forwarded requests have not", strings.Replace(again, `"server"`, `"proxy-url":"http://127.0.0.1:1","server"`, 1), false, "second ", ""},
		{"truncated", again[:700], true, "second ", ""},
		{"mismatched", kubeconfigText(server.URL, first, `"client-certificate-data":"bm8=","client-key-data":"bm8="`), true, "second ", ""},
		{"a token", kubeconfigText(server.URL, first, `"token":"t1"`), false, "nobody Bearer t1", ""},
		{"files beside the kubeconfig", kubeconfigText(server.URL, first, `"client-certificate":"user.crt","client-key":"user.key"`), false, "file ", ""},
		{"another CA", kubeconfigText(server.URL, next, certified("fourth")), false, "fourth ", ""},
		{"another server: the first one counts", kubeconfigText("https://192.0.2.1:6443", next, certified("fifth")), false, "fifth ", "restart to follow it"},
	} {
		if step.name == "another CA" {
			present = next
			server.CloseClientConnections()
		}
		_, err := f.reload(writeFile(t, path, step.kubeconfig))
		check.Same(t, step.refused, err != nil, "%s: %v", step.name, err)
		check.Same(t, step.as, string(must.Get(client.RESTClient().Get().AbsPath("/who").DoRaw(t.Context()))(t)), "%s", step.name)
		held := f.certificate() // the one whose expiry metrics show
		if user, _, isToken := strings.Cut(step.as, " Bearer "); isToken != (len(held) == 0) || !isToken && held[0].Subject.CommonName+" " != user {
			t.Errorf("%s: the certificate in use is %v", step.name, held)
		}
		check.Has(t, logged.String(), step.logs)
		check.Same(t, step.logs != "", logged.Len() > 0, "%s: something is logged", step.name)
	}
}

// The kubeconfig may embed the local apiserver's CA or name its file, and change from one to the
// other: the CA that it says now is the one that is trusted.
func TestFollowLocalCA(t *testing.T) {
	dir, all := t.TempDir(), map[string]*pki.CA{"first": pki.NewCA("first"), "second": pki.NewCA("second"), "third": pki.NewCA("third")}
	path := filepath.Join(dir, "kubeconfig")
	embeds := func(ca string) string { return kubeconfigText("https://192.0.2.1:6443", all[ca], `"token":"x"`) }
	names := func(file string) string {
		return strings.Replace(embeds(""), `"server":`, `"certificate-authority":"`+file+`.crt","server":`, 1)
	}
	type step struct {
		kubeconfig string // empty: the file that was named at the start gets the CA content
		content    string
		want       string
		refused    bool
	}
	for name, steps := range map[string][]step{
		"embedded at the start": {
			{embeds("first"), "", "first", false}, {names("second"), "", "second", false}, {names("empty"), "", "second", true}, {names("none"), "", "second", true},
			{embeds("first"), "", "first", false}, {embeds(""), "", "", false}, // none: the system's
		},
		"a file at the start": {
			{names("followed"), "", "first", false}, {"", "second", "second", false}, {embeds("third"), "", "third", false}, {"", "first", "third", false},
			{names("followed"), "", "first", false}, {"", "second", "second", false}, {names("third"), "", "third", false},
		},
	} {
		for file, ca := range map[string]string{"followed": "first", "second": "second", "third": "third"} {
			writeFile(t, filepath.Join(dir, file+".crt"), string(all[ca].PEM()))
		}
		writeFile(t, filepath.Join(dir, "empty.crt"), "")
		writeFile(t, path, steps[0].kubeconfig)
		var logged bytes.Buffer
		k := must.Get(newProcess(&options{kubeconfig: path}, slog.New(slog.NewTextHandler(&logged, nil))).findKube(t.Context()))(t)
		k.trust = trust.New(trust.Config{})
		takes := map[string]certs.File{}
		for _, f := range k.followed() {
			takes[f.Use] = f
		}
		if f, ok := takes["local-apiserver-ca"]; ok {
			must.Do(t, f.Take(all["first"].PEM()))
		}
		for i, s := range steps {
			use, content := "kubeconfig", []byte(s.kubeconfig)
			if s.kubeconfig == "" {
				use, content = "local-apiserver-ca", all[s.content].PEM()
				writeFile(t, filepath.Join(dir, "followed.crt"), string(content))
			} else {
				writeFile(t, path, s.kubeconfig)
			}
			err := takes[use].Take(content)
			got := ""
			for _, c := range k.trust.Status()[0].CAs {
				got += c.Subject
			}
			check.Same(t, s.want, got, "%s, step %d: trusts", name, i)
			check.Same(t, s.refused, err != nil, "%s, step %d: %v", name, i, err)
		}
		check.Has(t, logged.String(), "names another CA file") // which is not followed
	}
}

// A kubeconfig with another token renews the credential for requests of known users, too.
func TestKubeconfigRenewsCredential(t *testing.T) {
	dir := t.TempDir()
	kubeconfigOf(t, dir, `"token":"x"`)
	o := &options{Shared: cli.Shared{LocalIdentity: cli.Impersonate}, kubeconfig: filepath.Join(dir, "kubeconfig")}
	k := must.Get(newProcess(o, slog.New(slog.DiscardHandler)).findKube(t.Context()))(t)
	k.trust = trust.New(trust.Config{})
	kubeconfigOf(t, dir, `"token":"y"`)
	for _, f := range k.followed() {
		must.Do(t, f.Take(nil))
	}
	must.Do(t, k.credential.look(t.Context(), k.credential.offered.Load(), false, nil)) // as Run does
	check.Same(t, "Bearer y", k.credential.Authorization(), "credential")
}

// A kubeconfig that gains or loses insecure-skip-tls-verify, or a tls-server-name, is followed for forwarded requests
// only after a restart. One warning for each change says so.
func TestInsecureNeedsRestart(t *testing.T) {
	secure := kubeconfigText("https://192.0.2.1:6443", nil, `"token":"x"`)
	insecure := strings.Replace(secure, `"server":`, `"insecure-skip-tls-verify":true,"server":`, 1)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	named := strings.Replace(secure, `"server":`, `"tls-server-name":"a.example","server":`, 1)
	for says, texts := range map[string][]string{"insecure=true": {secure, insecure}, "insecure=false": {insecure, secure}, "name=a.example": {secure, named}} {
		kube, _, _, err := clientConfig(writeFile(t, path, texts[0]), nil, false)
		must.Do(t, err)
		var logged bytes.Buffer
		f, _ := must.Get2(follow(kube, slog.New(slog.NewTextHandler(&logged, nil))))(t)
		renewed := strings.Replace(texts[1], `"token":"x"`, `"token":"y"`, 1)
		var warnings []int
		for _, text := range []string{texts[0], texts[1], renewed, texts[0], texts[1]} {
			must.Get(f.reload(writeFile(t, path, text)))(t)
			warnings = append(warnings, strings.Count(logged.String(), "restart to follow it"))
		}
		check.Same(t, []int{0, 1, 1, 1, 2}, warnings, "warnings that it is %s", says)
		check.Same(t, 2, strings.Count(logged.String(), says), "in %s", logged.String())
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
