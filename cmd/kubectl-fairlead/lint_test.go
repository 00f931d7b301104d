package main

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestLintKubeconfig(t *testing.T) {
	for left, want := range map[time.Duration]string{
		-time.Hour: `error: kubeconfig: its client certificate "system:fairlead" expired at `, 5*time.Hour + time.Minute: `warning: kubeconfig: its client certificate "system:fairlead" expires in 5h`, 365 * 24 * time.Hour: "",
	} {
		l := &linter{output: "text"}
		leaf := pki.NewCA("ca").Issue(pki.Leaf{CommonName: "system:fairlead", NotBefore: time.Now().Add(-30 * 24 * time.Hour), NotAfter: time.Now().Add(left)})
		l.credentials(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM()}})
		got := reported(l)
		if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("with %s left: %q, want %q", left, got, want)
		}
		check.Same(t, want != "", strings.Contains(got, "; renew it; Fairlead's own by "), "advice for an administrator's kubeconfig, too")
	}
}

// lint accepts those of serve's flags that affect it, as cli.Shared, and --kubeconfig. The other flags are its own.
func TestLintFlags(t *testing.T) {
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(cli.Shared).AddFlags(func(string) *pflag.FlagSet { return shared })
	others := []string{"account", "context", "kubeconfig", "namespace", "output", "serving-names"}
	lintCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if serves := shared.Lookup(f.Name); (serves == nil) != slices.Contains(others, f.Name) || serves != nil && serves.DefValue != f.DefValue {
			t.Errorf("--%s, by default %q", f.Name, f.DefValue)
		}
	})
	for self, want := range map[string]string{"/usr/bin/kubectl-fairlead": "kubectl fairlead", "/usr/bin/fairlead": "fairlead"} {
		check.Same(t, want, called(self), "called as %s", self)
	}
}

// files writes a folder for lint: extension-ca signs BUNDLE and PEM of the manifests.
func files(t *testing.T) (dir string, fill *strings.Replacer) {
	t.Helper()
	dir = t.TempDir()
	clients, proxies, extension := pki.NewCA("client-ca"), pki.NewCA("front-proxy-ca"), pki.NewCA("extension-ca")
	past := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, leaf := range map[string]pki.Leaf{"good": {Names: []string{"api.example.com"}}, "inner": {Names: []string{"kubernetes"}}, "bare": {}, "old": {Names: []string{"api.example.com"}, NotBefore: past, NotAfter: past.Add(time.Hour)}} {
		leaf.CommonName = "fairlead"
		must.Get2(clients.Issue(leaf).WriteFiles(dir, name))(t)
	}
	half := clients.Intermediate("middle").Issue(pki.Leaf{Names: []string{"api.example.com"}}) // of its chain
	must.Get2(half.WriteFiles(dir, "half"))(t)
	must.Do(t, os.WriteFile(filepath.Join(dir, "half.crt"), half.CertPEM()[:len(half.CertPEM())-40], 0o600))
	for _, name := range []string{"one", "two", "three", "urls"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for name, to := range map[string]string{"link": "one", "one/more": "../two", "two/loop": "../two"} {
		must.Do(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	for name, text := range map[string]string{
		"client-ca.crt": string(clients.PEM()), "front-proxy-ca.crt": string(proxies.PEM()), "cut.crt": string(proxies.PEM()[:200]),
		"short-ca.crt": string(clients.IntermediateUntil("short", time.Now().Add(15*time.Minute)).PEM()),
		"two/a.yaml":   strings.Replace(manifests.Remote("widgets.example.com", "192.0.2.1", `fairlead.dev/request-timeout: "\e[2J"`), "insecureSkipTLSVerify: true, ", "", 1),
		"urls/a.yaml":  manifests.Remote("widgets.example.com", "127.0.0.1", `fairlead.dev/url: "https://127.0.0.1:8443,https://api.example.com"`),
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	encode := base64.StdEncoding.EncodeToString
	return dir, strings.NewReplacer("BUNDLES", encode(pki.Bundle(clients, extension)), "BUNDLE", encode(extension.PEM()), "PEM", strconv.Quote(string(extension.PEM())), "DIR", dir)
}

// What only a Fairlead knows is asked of it, if the kubeconfig leads to one.
func TestLintAsksFairlead(t *testing.T) {
	f := newFront(t)
	l := &linter{output: "text", kubeconfig: kubeconfig(t, f.Server)}
	cfg := must.Get(l.config())(t)
	l.told(stateOf(t.Context(), cfg))
	check.Same(t, 0, len(l.Findings), "findings at kube-apiserver")
	f.answers["/fairlead/status"] = []reply{{http.StatusOK, `{"replica":"r","handshakes":["3 TLS handshakes failed"],"checks":[{"name":"clock","status":"failed","message":"it is behind"},{"name":"rights","status":"passed"}],"apiServices":[` +
		`{"name":"v1.x","kind":"remote","verdict":{"status":"True"},"cause":"its URLs lead to different servers","advice":"name replicas"},` +
		`{"name":"v1.y","kind":"remote","verdict":{"status":"True"}},{"name":"v1.z","kind":"remote","verdict":{"status":"False"},"cause":"lint reports it"},` +
		`{"name":"v1.a","kind":"remote","verdict":{"status":"False"},"cause":"404"},{"name":"v1.b","kind":"remote","verdict":{"status":"True"},"maintenance":"moving","cause":"it is in maintenance: moving"}]}`}}
	l.Warn("APIService v1.z", "do", "found")
	l.told(stateOf(t.Context(), cfg))
	check.Same(t, "warning: APIService v1.z: found; do\nerror: Fairlead's check clock: it is behind; kubectl fairlead status\nwarning: clients of r: 3 TLS handshakes failed; kubectl fairlead status\nwarning: APIService v1.x: its URLs lead to different servers; name replicas\n"+
		"error: APIService v1.a: 404; kubectl fairlead explain v1.a\nwarning: APIService v1.b: it is in maintenance: moving; kubectl fairlead explain v1.b\n", reported(l), "findings")
	f.answers["/fairlead/status"] = []reply{{http.StatusOK, `{"notReady":"table: not complete","checks":[{"name":"rights","status":"failed","message":"may not list"}]}`}}
	l = &linter{output: "text", kubeconfig: l.kubeconfig}
	l.inspect(t.Context(), cfg)
	check.Same(t, "error: Fairlead's check rights: may not list; kubectl fairlead status\nerror: Fairlead: it takes no requests: table: not complete; "+
		"give lint a kubeconfig of kube-apiserver's own address: nothing else was checked\n", reported(l), "findings at one that is not ready")
}

// The context of the kubeconfig is the one that is given.
func TestLintContext(t *testing.T) {
	_, err := (&linter{kubeconfig: kubeconfig(t, newFront(t).Server), context: "other"}).config()
	check.Fault(t, `context "other" does not exist`, err, "a context that the kubeconfig lacks")
	check.Same(t, "exit 2: --context needs --kubeconfig\n", run(t, "", "lint", "--context=c", "-"), "a context for files alone")
}
