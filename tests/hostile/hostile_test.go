//go:build e2e

package hostile

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// No bytes that a caller sends to a port cost other callers more than a documented amount.
func TestProtocol(t *testing.T) {
	w := newWorld(t)
	t.Run("h2spec", func(t *testing.T) { testConformance(t, w.open(t)) })
	t.Run("frame", func(t *testing.T) {
		suite.Cases[*door]{
			{Name: "smuggling", Run: testSmuggling},
			{Name: "backends", Run: testBackends},
			{Name: "floods", Run: testFloods},
			{Name: "slow peers", Run: testSlow},
		}.Run(t, w.open(t))
	})
}

// testConformance runs h2spec without credentials against both ports.
func testConformance(t *testing.T, d *door) {
	h2spec := suite.Tool(t, "h2spec")
	for name, address := range map[string]string{"front": d.Front, "admin": d.Admin} {
		t.Run(name, func(t *testing.T) {
			host, port, err := net.SplitHostPort(address)
			must.Do(t, err)
			out, err := exec.CommandContext(t.Context(), h2spec, "--host", host, "--port", port, "--tls", "--insecure", "--timeout", "5", "--path", "/readyz").CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			t.Log(lines[len(lines)-1])
			if err != nil || !strings.Contains(string(out), " 0 failed") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
