//go:build e2e

package hostile

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// testConformance runs h2spec without credentials against both ports.
func testConformance(t *testing.T, w *world) {
	h2spec := must.Get(tools.Path(t.Context(), tools.Config{Progress: os.Stderr}, "h2spec"))(t)
	d := w.open(t)
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
