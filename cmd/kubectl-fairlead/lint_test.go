package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

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
