package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func lint(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return run(t, stdin, append([]string{"lint"}, args...)...)
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
  caBundle:
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

// found compares lines by prefix. A finding is one line that ends in an instruction; errors are
// counted at the end, and make the exit code 1.
func found(t *testing.T, name, out string, want ...string) {
	t.Helper()
	if n := strings.Count("\n"+strings.Join(want, "\n"), "\nerror: "); n > 0 {
		want = append(want, fmt.Sprintf("exit 1: %s, ", count(n, "error")))
	}
	var got []string
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		finding := strings.HasPrefix(line, "error: ") || strings.HasPrefix(line, "warning: ")
		if i := len(got); i < len(want) && strings.HasPrefix(line, want[i]) && (!finding || strings.Contains(line, "; ")) {
			line = want[i]
		}
		got = append(got, line)
	}
	check.Same(t, want, got, "%s", name)
}

// Wrong manifests are reported, and those that look odd but work are not: the cluster may have what
// they lack.
func TestLintFiles(t *testing.T) {
	ca, old := pki.NewCA("extension-ca"), pki.NewCA("old-ca")
	bundle := func(text []byte) string { return "  caBundle: " + base64.StdEncoding.EncodeToString(text) }
	note := func(annotation string) string {
		return "    fairlead.dev/request-timeout: 30s\n    fairlead.dev/" + annotation
	}
	configMap := func(key string) string {
		text := fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: ns, name: ca}\ndata: {%s: %q}\n", key, ca.PEM())
		return manifestOf(note("ca-from: ca/ca.crt")) + text
	}
	slice := func(endpoint string) string {
		return manifestOf() + "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: ns, name: w, labels: {kubernetes.io/service-name: widgets}}, " +
			"addressType: IPv4, ports: [{port: 443}], endpoints: [{" + endpoint + "}]}\n"
	}
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: widgets}\n---\n"
	const where, ignored = "-:1: APIService v1.widgets.example.com: ", "ignored, because Fairlead does not read it: Deployment (2)"
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"good", manifestOf(bundle(ca.PEM())), nil},
		{"unknown field", manifestOf("  groupPriorityMinimum: 1000\n  colour: red"), []string{"error: -:11: "}},
		{"upstream's validation", manifestOf("  name: widgets"), []string{"error: -:4: metadata.name: "}},
		{"misspelt annotation", manifestOf(note("max-inflght: \"4\"")), []string{"error: " + where + "annotation fairlead.dev/max-inflght: unknown name"}},
		{"bad annotation", manifestOf("    fairlead.dev/request-timeout: soon"), []string{`error: ` + where + `annotation fairlead.dev/request-timeout: "soon" is not a duration`}},
		{"bundle that is no PEM", manifestOf(bundle([]byte("no PEM"))), []string{"error: " + where + "its CA bundle is not usable"}},
		{"not verified", manifestOf("  caBundle:", "  versionPriority: 10\n  insecureSkipTLSVerify: true"), []string{"warning: " + where + "its backend is not verified"}},
		{"a port that the Service has not", manifestOf("  ports: [{port: 8443}]"), []string{"error: " + where + `service/widgets in "ns" is not listening on port 443`}},
		{"a protected group", manifestOf("  name: v1.apps", "  group: apps"), []string{"error: -:1: APIService v1.apps: "}},
		{"twice", manifestOf() + "---\n" + manifestOf(), []string{"error: -:21: APIService v1.widgets.example.com is already at -:1", "error: -:35: Service ns/widgets is already at -:15"}},
		{"bundle in a ConfigMap", configMap("ca.crt"), nil},
		{"bundle in no key of a ConfigMap", configMap("other"), []string{"error: " + where + "ConfigMap ns/ca, which should contain its bundle"}},
		{"a URL that is not allowed", manifestOf(note("url: https://api.example.com")), []string{"error: " + where + "annotation fairlead.dev/url: URLs are not allowed here (--allow-url-backends)"}},
		{"a URL that is none", manifestOf(note("url: https://api.example.com/v2")), []string{"error: " + where + `annotation fairlead.dev/url: "https://api.example.com/v2" is not https://`}},
		{"both bundles", manifestOf(note("ca-from: ca/ca.crt"), bundle(ca.PEM())), []string{"error: " + where + "annotation fairlead.dev/ca-from and spec.caBundle exclude each other"}},
		{"a mistake beside others", "apiVersion: v1\nkind: Servise\n---\n" + manifestOf("  ports: [{port: 8443}]"), []string{"error: -:2: kind: unknown kind", "error: -:4: APIService v1.widgets.example.com: service/widgets"}},
		{"a chart", deployment + deployment + manifestOf("  ports: [{port: 8443}]"), []string{ignored, "error: -:9: APIService v1.widgets.example.com: service/widgets"}},
		{"a chart without an APIService", deployment + deployment, []string{ignored}},
		{"no Service beside it", strings.Split(manifestOf(), "---")[0], nil},
		{"a Service of localhost", manifestOf("  ports: [{port: 443}]\n  type: ExternalName\n  externalName: localhost"), nil},
		{"a headless Service", manifestOf("  ports: [{port: 443}]\n  clusterIP: None"), nil},
		{"a Service without pods", manifestOf("  ports: [{port: 443}]\n  selector: {}"), nil},
		{"endpoints that are not up", slice("addresses: [192.0.2.1], conditions: {ready: false}"), nil},
		{"loopback endpoints", slice("addresses: [127.0.0.1]"), []string{"warning: " + where + "endpoint refused: 127.0.0.1 is a loopback address; give lint the same flags as "}},
		{"two CAs, of a rotation", manifestOf(bundle(pki.Bundle(old, ca))), nil},
		{"in maintenance", manifestOf(note(`maintenance: "moving house"`)), nil},
		{"no namespace", strings.ReplaceAll(manifestOf(), "metadata: {namespace: ns, name: widgets}", "metadata: {name: widgets}"), nil},
		{"Local", strings.Split(manifestOf("  service:", "  caBundle:"), "---")[0], nil},
	} {
		found(t, tt.name, lint(t, tt.in, "-"), tt.want...)
	}
	found(t, "a URL that is allowed", lint(t, manifestOf(note("url: https://api.example.com")), "--allow-url-backends", "-"))
}

func TestLintOwn(t *testing.T) {
	dir := t.TempDir()
	clientCA, proxyCA := pki.NewCA("client-ca"), pki.NewCA("front-proxy-ca")
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, data, 0o600))
		return path
	}
	serving := func(name string, leaf pki.Leaf) []string {
		leaf.CommonName = "fairlead"
		cert, key := must.Get2(clientCA.Issue(leaf).WriteFiles(dir, name))(t)
		return []string{"--tls-cert-file", cert, "--tls-private-key-file", key}
	}
	names := []string{"api.example.com"}
	good, bare, old := serving("good", pki.Leaf{Names: names}), serving("bare", pki.Leaf{}), serving("old", pki.Leaf{Names: names, NotAfter: time.Now().Add(-time.Minute)})
	cert, key := good[1], good[3]
	client, proxy := write("client-ca.crt", clientCA.PEM()), write("front-proxy-ca.crt", proxyCA.PEM())
	cut := write("cut.crt", proxyCA.PEM()[:200])
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"good", append(good, "--serving-names", "api.example.com", "--client-ca-file", client, "--requestheader-client-ca-file", proxy), nil},
		{"another name", append(good, "--serving-names", "api.example.com,10.0.0.1"), []string{`error: serving certificate: clients that use "10.0.0.1" will refuse it`}},
		{"no name at all", bare, []string{"error: serving certificate: it has no subject alternative name"}},
		{"expired", old, []string{`error: serving certificate: certificate "fairlead" expired`}},
		{"another's key", append(good[:3:3], bare[3]), []string{"error: serving certificate: the pair cannot be used"}},
		{"SNI", []string{"--tls-sni-cert-key", cert + "," + key + ":other.example.com,*.example.com"}, []string{"error: SNI certificate " + cert + `: clients that use "other.example.com" will refuse it`}},
		{"a bundle cut short", []string{"--requestheader-client-ca-file", cut}, []string{"error: request-header CA " + cut + ": it is not usable"}},
		{"one CA for both", []string{"--client-ca-file", client, "--requestheader-client-ca-file", client}, []string{"error: client CA: "}},
		{"one CA for both, names", []string{"--client-ca-file", client, "--requestheader-client-ca-file", client, "--requestheader-allowed-names", "front"}, nil},
		{"proxy client alone", []string{"--proxy-client-cert-file", cert, "--proxy-client-key-file", key}, []string{"warning: proxy client certificate: it could not be compared"}},
		{"no file", []string{"/no/such/file.yaml"}, []string{"exit 2: /no/such/file.yaml: no such file or directory"}},
		{"no such form", []string{"-", "-o", "xml"}, []string{"exit 2: "}},
		{"no kubeconfig", []string{"--kubeconfig", "/no/such/kubeconfig"}, []string{"exit 2: "}},
		{"half a pair", []string{"-", "--tls-cert-file", "/dev/null"}, []string{"exit 2: "}},
		{"a name that is a URL", []string{"-", "--serving-names", "https://api.example.com"}, []string{"exit 2: "}},
		{"no such flag", []string{"-", "--no-such-flag"}, []string{"exit 2: "}},
	} {
		found(t, tt.name, lint(t, "", tt.args...), tt.want...)
	}
}

func TestLintKubeconfig(t *testing.T) {
	for left, want := range map[time.Duration]string{
		-time.Hour: "error: kubeconfig: its client certificate expired at ", 5*time.Hour + time.Minute: "warning: kubeconfig: its client certificate expires in 5h", 365 * 24 * time.Hour: "",
	} {
		l := &linter{output: "text"}
		leaf := pki.NewCA("ca").Issue(pki.Leaf{CommonName: "system:fairlead", NotBefore: time.Now().Add(-30 * 24 * time.Hour), NotAfter: time.Now().Add(left)})
		l.credentials(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: leaf.CertPEM(), KeyData: leaf.KeyPEM()}})
		var out bytes.Buffer
		_ = l.report(&out)
		if got := out.String(); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("with %s left: %q, want %q", left, got, want)
		}
	}
}

// lint accepts those of serve's flags that affect it. docs/flags.md lists them.
func TestLintFlags(t *testing.T) {
	doc := must.Get(os.ReadFile("../../docs/flags.md"))(t)
	lintCommand().Flags().VisitAll(func(f *pflag.Flag) {
		row := regexp.MustCompile("(?m)^\\| `--" + f.Name + "` \\| `?" + regexp.QuoteMeta(strings.Trim(f.DefValue, "[]")) + "`? \\| ")
		if own := f.Name == "output" || f.Name == "serving-names" || f.Name == "namespace"; own == row.Match(doc) {
			t.Errorf("a row %s in docs/flags.md: %t", row, !own)
		}
	})
	for self, want := range map[string]string{"/usr/bin/kubectl-fairlead": "kubectl fairlead", "/usr/bin/fairlead": "fairlead"} {
		check.Same(t, want, called(self), "called as %s", self)
	}
}

// lint reads the files that --registry=dir: reads, also through links; programs get a list.
func TestLintFolders(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two", "three"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "two", "a.yaml"), []byte(manifestOf("    fairlead.dev/request-timeout: \"\\e[2J\"")), 0o600))
	for name, to := range map[string]string{"link": "one", "one/more": "../two", "two/loop": "../two"} {
		must.Do(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	more := filepath.Join(dir, "link", "more")
	first := filepath.Join(more, "a.yaml") + ":1"
	loop, annotation := "error: "+filepath.Join(more, "loop")+": reading directory: a link to a directory that contains it", "error: "+first+": APIService v1.widgets.example.com: annotation "
	found(t, "links", lint(t, "", filepath.Join(dir, "link")), loop, annotation)
	found(t, "nothing to read", lint(t, "", filepath.Join(dir, "three")), "warning: "+filepath.Join(dir, "three")+": there is no .yaml")
	found(t, "a folder and a file", lint(t, manifestOf(), filepath.Join(dir, "link"), "-"), loop,
		"error: -:1: APIService v1.widgets.example.com is already at "+first, "error: -:15: Service ns/widgets is already at "+filepath.Join(more, "a.yaml"), annotation)
	var got []certs.Finding
	list, _, _ := strings.Cut(lint(t, "", filepath.Join(dir, "two", "a.yaml"), "-o", "json"), "exit 1")
	must.Do(t, json.Unmarshal([]byte(list), &got))
	if len(got) != 1 || got[0].Severity != "error" || got[0].Object != filepath.Join(dir, "two", "a.yaml")+":1: APIService v1.widgets.example.com" || got[0].Message == "" || got[0].Do == "" {
		t.Errorf("got %+v", got)
	}
	check.Same(t, "[]\n", lint(t, manifestOf(), "-", "-o", "json"), "nothing wrong")
	if got := printable("a\x1b[2Jb"); strings.ContainsRune(got, 0x1b) {
		t.Errorf("control characters reach the terminal: %q", got)
	}
}
