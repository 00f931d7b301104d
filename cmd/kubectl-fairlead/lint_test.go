package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func lint(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetArgs(append([]string{"lint"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// lintText returns what lint printed, with any exit code.
func lintText(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, _ := lint(t, stdin, args...)
	return out
}

// manifestOf is an APIService with its Service. Each line of changes replaces the line with the
// same key; a change that ends in a colon deletes its line.
func manifestOf(changes ...string) string {
	lines := strings.Split(strings.TrimSpace(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.widgets.example.com
  annotations:
    fairlead.dev/request-timeout: 30s
spec:
  group: widgets.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  caBundle: CA
  service: {namespace: ns, name: widgets, port: 443}
---
apiVersion: v1
kind: Service
metadata: {namespace: ns, name: widgets}
spec:
  ports: [{port: 443}]`), "\n")
	for _, c := range changes {
		key, value, _ := strings.Cut(strings.TrimSpace(c), ":")
		for i, line := range lines {
			if strings.HasPrefix(strings.TrimSpace(line), key+":") {
				lines[i] = c
				if value == "" {
					lines = append(lines[:i], lines[i+1:]...)
				}
				break
			}
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// found compares findings by prefix; each is one line that ends in an instruction.
func found(t *testing.T, out string, want []string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if i := len(got); i < len(want) && strings.HasPrefix(line, want[i]) && strings.Contains(line, "; ") {
			line = want[i]
		}
		got = append(got, line)
	}
	check.Same(t, want, got, "output")
}

func TestLintFiles(t *testing.T) {
	ca := "  caBundle: " + base64.StdEncoding.EncodeToString(pki.NewCA("extension-ca").PEM())
	configMap := func(key string) string {
		return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: ns, name: ca}\ndata:\n  " + key + ": |\n    " +
			strings.ReplaceAll(strings.TrimSpace(string(pki.NewCA("x").PEM())), "\n", "\n    ") + "\n"
	}
	const where = "-:1: APIService v1.widgets.example.com: "
	for _, tt := range []struct {
		name string
		in   string
		want []string
	}{
		{"good", manifestOf(ca), nil},
		{"unknown field", manifestOf(ca, "  groupPriorityMinimum: 1000\n  colour: red"), []string{"error: -:11: "}},
		{"upstream's validation", manifestOf(ca, "  name: widgets"), []string{"error: -:4: metadata.name: "}},
		{"misspelt annotation", manifestOf(ca, "    fairlead.dev/request-timeout: 30s\n    fairlead.dev/max-inflght: \"4\""), []string{"error: " + where + "annotation fairlead.dev/max-inflght: unknown name"}},
		{"bad annotation", manifestOf(ca, "    fairlead.dev/request-timeout: soon"), []string{`error: ` + where + `annotation fairlead.dev/request-timeout: "soon" is not a duration`}},
		{"bundle that is no PEM", manifestOf("  caBundle: " + base64.StdEncoding.EncodeToString([]byte("no PEM"))), []string{"error: " + where + "its CA bundle is not usable"}},
		{"not verified", manifestOf("  caBundle:", "  versionPriority: 10\n  insecureSkipTLSVerify: true"), []string{"warning: " + where + "its backend is not verified"}},
		{"a port that the Service has not", manifestOf(ca, "  ports: [{port: 8443}]"), []string{"error: " + where + `service/widgets in "ns" is not listening on port 443`}},
		{"a protected group", manifestOf(ca, "  name: v1.apps", "  group: apps"), []string{"error: -:1: APIService v1.apps: "}},
		{"twice", manifestOf(ca) + "---\n" + manifestOf(ca), []string{"error: -:21: APIService v1.widgets.example.com is already at -:1", "error: -:35: Service ns/widgets is already at -:15"}},
		{"bundle in a ConfigMap", manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/ca-from: ca/ca.crt", "  caBundle:") + configMap("ca.crt"), nil},
		{"bundle in no key of a ConfigMap", manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/ca-from: ca/ca.crt", "  caBundle:") + configMap("other"), []string{"error: " + where + "ConfigMap ns/ca, which should contain its bundle"}},
		{"a URL that is not allowed", manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/url: https://api.example.com", ca), []string{"error: " + where + "annotation fairlead.dev/url: URLs are not allowed here (--allow-url-backends)"}},
		{"a URL that is none", manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/url: https://api.example.com/v2", ca), []string{"error: " + where + `annotation fairlead.dev/url: "https://api.example.com/v2" is not https://`}},
		{"both bundles", manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/ca-from: ca/ca.crt", ca), []string{"error: " + where + "annotation fairlead.dev/ca-from and spec.caBundle exclude each other"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := lint(t, tt.in, "-")
			found(t, out, tt.want)
			check.Same(t, strings.Contains(out, "error: "), err != nil, "an error, for findings of severity error")
			if cli.IsUsage(err) {
				t.Errorf("exit code 2 for a finding: %v", err)
			}
		})
	}
	allowed := manifestOf("    fairlead.dev/request-timeout: 30s\n    fairlead.dev/url: https://api.example.com", ca)
	if out, err := lint(t, allowed, "--allow-url-backends", "-"); out != "" || err != nil {
		t.Errorf("a URL that is allowed: %v %s", err, out)
	}
}

func TestLintOwn(t *testing.T) {
	dir := t.TempDir()
	clientCA, proxyCA := pki.NewCA("client-ca"), pki.NewCA("front-proxy-ca")
	write := func(name string, data ...[]byte) string {
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, bytes.Join(data, nil), 0o600))
		return path
	}
	pair := func(name string, leaf pki.Leaf) (cert, key string) {
		return must.Get2(clientCA.Issue(leaf).WriteFiles(dir, name))(t)
	}
	cert, key := pair("serving", pki.Leaf{CommonName: "fairlead", Names: []string{"api.example.com"}})
	bare, bareKey := pair("bare", pki.Leaf{CommonName: "fairlead"})
	old, oldKey := pair("old", pki.Leaf{CommonName: "fairlead", Names: []string{"api.example.com"}, NotAfter: time.Now().Add(-time.Minute)})
	client, proxy := write("client-ca.crt", clientCA.PEM()), write("front-proxy-ca.crt", proxyCA.PEM())
	cut := write("cut.crt", proxyCA.PEM()[:200])
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"good", []string{"--tls-cert-file", cert, "--tls-private-key-file", key, "--serving-names", "api.example.com", "--client-ca-file", client, "--requestheader-client-ca-file", proxy}, nil},
		{"another name", []string{"--tls-cert-file", cert, "--tls-private-key-file", key, "--serving-names", "api.example.com,10.0.0.1"}, []string{`error: serving certificate: clients that use "10.0.0.1" will refuse it`}},
		{"no name at all", []string{"--tls-cert-file", bare, "--tls-private-key-file", bareKey}, []string{"error: serving certificate: it has no subject alternative name"}},
		{"expired", []string{"--tls-cert-file", old, "--tls-private-key-file", oldKey}, []string{`error: serving certificate: certificate "fairlead" expired`}},
		{"another's key", []string{"--tls-cert-file", cert, "--tls-private-key-file", bareKey}, []string{"error: serving certificate: the pair cannot be used"}},
		{"SNI", []string{"--tls-sni-cert-key", cert + "," + key + ":other.example.com,*.example.com"}, []string{"error: SNI certificate " + cert + `: clients that use "other.example.com" will refuse it`}},
		{"a bundle cut short", []string{"--requestheader-client-ca-file", cut}, []string{"error: request-header CA " + cut + ": it is not usable"}},
		{"one CA for both", []string{"--client-ca-file", client, "--requestheader-client-ca-file", client}, []string{"error: client CA: "}},
		{"one CA for both, names", []string{"--client-ca-file", client, "--requestheader-client-ca-file", client, "--requestheader-allowed-names", "front"}, nil},
		{"proxy client alone", []string{"--proxy-client-cert-file", cert, "--proxy-client-key-file", key}, []string{"warning: proxy client certificate: it could not be compared"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := lint(t, "", tt.args...)
			found(t, out, tt.want)
			check.Same(t, strings.Contains(out, "error: "), err != nil, "an error, for findings of severity error")
		})
	}
}

func TestLintUsage(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"/no/such/file.yaml"},
		{"-", "-o", "xml"},
		{"--kubeconfig", "/no/such/kubeconfig"},
		{"-", "--tls-cert-file", "/dev/null"},
		{"-", "--serving-names", "https://api.example.com"},
		{"-", "--no-such-flag"},
	} {
		if out, err := lint(t, "", args...); !cli.IsUsage(err) || out != "" {
			t.Errorf("%q: %T %v, printed %q", args, err, err, out)
		}
	}
	if _, err := lint(t, "", "/no/such/file.yaml"); err == nil || err.Error() != "/no/such/file.yaml: no such file or directory" {
		t.Errorf("a file that is missing: %v", err)
	}
}

// lint reads the output of helm template: it checks the APIService of a chart, and reports the
// kinds that it ignores.
func TestLintChart(t *testing.T) {
	chart := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: widgets}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: test}\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {ports: [{port: 443}]}\n---\n"
	cmd := root()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetIn(strings.NewReader(chart + manifestOf("  caBundle:", "  ports: [{port: 8443}]")))
	cmd.SetArgs([]string{"lint", "-"})
	err := cmd.ExecuteContext(t.Context())
	found(t, out.String(), []string{`error: -:14: APIService v1.widgets.example.com: service/widgets in "ns" is not listening on port 443`})
	if err == nil || err.Error() != "1 error, 0 warnings" {
		t.Errorf("error %v", err)
	}
	check.Same(t, "ignored, because Fairlead does not read it: Deployment (1)\nignored, because Fairlead does not read it: Pod (1)\n", errs.String(),
		"stderr")
	if text, err := lint(t, chart, "-"); err != nil || strings.Contains(text, "error") {
		t.Errorf("a chart without an APIService: %v\n%s", err, text)
	}
	// A mistake is reported, and does not hide others in the same file.
	text := lintText(t, "apiVersion: v1\nkind: Servise\n---\n"+manifestOf("  caBundle:", "  ports: [{port: 8443}]"), "-")
	found(t, text, []string{"error: -:2: kind: unknown kind", "error: -:4: APIService v1.widgets.example.com: service/widgets"})
}

func TestLintKubeconfig(t *testing.T) {
	for left, want := range map[time.Duration][]string{
		-time.Hour: {"error: kubeconfig: its client certificate expired at "}, 5*time.Hour + time.Minute: {"warning: kubeconfig: its client certificate expires in 5h"}, 365 * 24 * time.Hour: nil,
	} {
		l := &linter{output: "text"}
		leaf := pki.NewCA("ca").Issue(pki.Leaf{CommonName: "system:fairlead", NotBefore: time.Now().Add(-30 * 24 * time.Hour), NotAfter: time.Now().Add(left)})
		l.credentials(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM()}})
		var out bytes.Buffer
		_ = l.report(&out)
		found(t, out.String(), want)
	}
}

// lint accepts those of serve's flags that affect it. docs/flags.md lists them.
func TestLintFlags(t *testing.T) {
	doc := must.Get(os.ReadFile("../../docs/flags.md"))(t)
	lintCommand().Flags().VisitAll(func(f *pflag.Flag) {
		def := strings.Trim(f.DefValue, "[]")
		if def != "" {
			def = "`" + def + "`"
		}
		row := fmt.Sprintf("| `--%s` | %s | ", f.Name, def)
		if own := f.Name == "output" || f.Name == "serving-names" || f.Name == "namespace"; own == strings.Contains(string(doc), row) {
			t.Errorf("a row %q in docs/flags.md: %t", row, !own)
		}
	})
}

func TestCalled(t *testing.T) {
	for self, want := range map[string]string{"/usr/bin/kubectl-fairlead": "kubectl fairlead", "/usr/bin/fairlead": "fairlead"} {
		check.Same(t, want, called(self), "called as %s", self)
	}
}

// lint reads the files that --registry=dir: reads, also through links.
func TestLintFolders(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two", "three"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "two", "a.yaml"), []byte("kind: X"), 0o600))
	for name, to := range map[string]string{"link": "one", "one/more": "../two", "two/loop": "../two"} {
		must.Do(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	more := filepath.Join(dir, "link", "more")
	found(t, lintText(t, "", filepath.Join(dir, "link")), []string{
		"error: " + filepath.Join(more, "loop") + ": reading directory: a link to a directory that contains it", "error: " + filepath.Join(more, "a.yaml") + ":1: ",
	})
	found(t, lintText(t, "", filepath.Join(dir, "three")), []string{"warning: " + filepath.Join(dir, "three") + ": there is no .yaml"})
}

func TestLintJSON(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(manifestOf("  caBundle:", "    fairlead.dev/request-timeout: \"\\e[2J\"")), 0o600))
	out, err := lint(t, "", dir, "-o", "json")
	if err == nil {
		t.Error("want an error for findings")
	}
	var got []certs.Finding
	must.Do(t, json.Unmarshal([]byte(out), &got))
	if len(got) != 1 || got[0].Severity != "error" || got[0].Object != filepath.Join(dir, "a.yaml")+":1: APIService v1.widgets.example.com" || got[0].Message == "" || got[0].Do == "" {
		t.Errorf("got %+v", got)
	}
	found(t, lintText(t, manifestOf("  caBundle:"), dir, "-"), []string{
		"error: -:1: APIService v1.widgets.example.com is already at " + filepath.Join(dir, "a.yaml") + ":1",
		"error: -:14: Service ns/widgets is already at " + filepath.Join(dir, "a.yaml"),
		"error: " + filepath.Join(dir, "a.yaml") + ":1: APIService v1.widgets.example.com: annotation",
	})
	if out, err := lint(t, manifestOf("  caBundle:"), "-", "-o", "json"); err != nil || out != "[]\n" {
		t.Errorf("nothing wrong: %q, %v", out, err)
	}
	if got := printable("a\x1b[2Jb"); strings.ContainsRune(got, 0x1b) {
		t.Errorf("control characters reach the terminal: %q", got)
	}
}
