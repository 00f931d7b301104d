//go:build e2e

package rotation

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// finding is one of lint's findings.
type finding struct{ Severity, Object, Message, Do string }

// lint runs fairlead lint against the cluster and returns its findings and exit code.
func (w *world) lint(t *testing.T, args ...string) ([]finding, int) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, w.Endpoint().WriteKubeconfig(kubeconfig, w.Admin()))
	cmd := exec.CommandContext(t.Context(), w.binary, append([]string{"lint", "--kubeconfig", kubeconfig, "--allow-loopback-backends", "-o", "json"}, args...)...)
	a := suite.Run(t, cmd, "")
	var found []finding
	if err := json.Unmarshal([]byte(a.Out), &found); err != nil {
		t.Fatalf("%v\n%s%s", err, a.Out, a.Errs)
	}
	return found, a.Code
}

// about returns the findings of one object as text.
func about(found []finding, object string) string {
	var lines []string
	for _, f := range found {
		if f.Object == object {
			lines = append(lines, f.Severity+": "+f.Message+"; "+f.Do)
		}
	}
	return strings.Join(lines, "\n")
}

// lintCluster checks a whole cluster. Other cases break its APIServices meanwhile, so each check is
// about one object.
func lintCluster(t *testing.T, s *stage) {
	good := startRemote(t, s.w, s.lane, "lintgood", nil)
	bad := startRemote(t, s.w, s.lane, "lintbad", nil)
	bad.trust(t, bad.new)
	old := startRemote(t, s.w, s.lane, "lintold", nil)
	old.trust(t, old.old, old.new)
	nowhere := startRemote(t, s.w, s.lane, "lintnowhere", caFrom(s.lane, "another"))
	base := filepath.Join(t.TempDir(), "proxy")
	cert, key := writePair(t, base, s.w.frontCAs[0].Issue(pki.Leaf{CommonName: "fairlead"}))
	found, code := s.w.lint(t, "--proxy-client-cert-file", cert, "--proxy-client-key-file", key)
	if code != 1 {
		t.Errorf("exit code %d, want 1: %+v", code, found)
	}
	const proxy = "proxy client certificate"
	for object, want := range map[string][]string{
		"APIService v1." + good.group:    nil,
		"APIService v1." + bad.group:     {`error: endpoint localhost:`, `which the bundle ("new-ca") does not hold; put the CA`},
		"APIService v1." + old.group:     {`warning: CA "new-ca" of its bundle verifies no endpoint; remove it`},
		"APIService v1." + nowhere.group: {"error: reading its bundle: configmaps \"another-" + s.lane + "\" not found"},
		proxy:                            {"warning: the cluster does not trust X-Remote-Uid", "--requestheader-uid-headers=X-Remote-Uid"},
	} {
		got := about(found, object)
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q, want %q in it", object, got, part)
			}
		}
		if want == nil && got != "" {
			t.Errorf("%s: %q, want no finding", object, got)
		}
	}
	if got := about(found, proxy); strings.Contains(got, "error") {
		t.Errorf("the valid proxy client certificate: %s", got)
	}
	cert, key = writePair(t, base, s.clients.lasting.Issue(pki.Leaf{CommonName: "stranger"}))
	found, _ = s.w.lint(t, "--proxy-client-cert-file", cert, "--proxy-client-key-file", key)
	for _, part := range []string{"error: the cluster's request-header CA", `does not verify "stranger"`, `"stranger" is not among the cluster's allowed names`} {
		if got := about(found, proxy); !strings.Contains(got, part) {
			t.Errorf("a stranger's certificate: %q, want %q in it", got, part)
		}
	}
}
