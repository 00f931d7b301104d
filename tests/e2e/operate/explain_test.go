//go:build e2e

package operate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// serve starts an extension server of <name>.example.com/v1 for Service operate/<name>, and registers it.
func (w *world) serve(t *testing.T, name string, change func(*extension.Config), faults ...extension.Fault) *extension.Server {
	t.Helper()
	s := w.extension(t, name, change)
	must.Do(t, s.Set(faults...))
	w.register(t, name, s.Port())
	return s
}

// extension starts an extension server that is not registered yet. change may be nil.
func (w *world) extension(t *testing.T, name string, change func(*extension.Config)) *extension.Server {
	t.Helper()
	cfg := extension.Config{
		GroupVersions: []string{name + ".example.com/v1"}, Names: []string{name + ".operate.svc"}, CA: w.ca,
		RequestHeaderCA: w.fronts, AllowedNames: []string{"front-proxy-client"}, RejectWith: 401,
	}
	if change != nil {
		change(&cfg)
	}
	return extension.Start(t, cfg)
}

// serveTwo registers an extension server with two endpoints, and returns the second.
func (w *world) serveTwo(t *testing.T, name, first, second string) (s *extension.Server) {
	t.Helper()
	for _, address := range []string{first, second} {
		s = w.extension(t, name, func(c *extension.Config) { c.Address = address + ":8443" })
	}
	w.register(t, name, s.Port(), first, second)
	return s
}

// register makes the Service operate/<name>, which leads to this machine or to addresses, and the
// APIService v1.<name>.example.com.
func (w *world) register(t *testing.T, name string, port int, addresses ...string) {
	t.Helper()
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "operate", Service: name, Port: port, Addresses: addresses, CAFile: w.caFile,
		GroupVersions: []string{name + ".example.com/v1"},
	}))
}

func definition(plural, group string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.%[2]s.example.com}
spec:
  group: %[2]s.example.com
  names: {plural: %[1]s, kind: Thing}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`, plural, group)
}

// testExplain breaks backends in ways whose errors come from the system and its libraries, and lets
// the command explain what is wrong. TestDiagnose (cmd/fairlead/pages) has every other way.
func testExplain(t *testing.T, w *world) {
	fault := func(k extension.Kind) func(*testing.T, string) {
		return func(t *testing.T, name string) { w.serve(t, name, nil, extension.Fault{Kind: k}) }
	}
	cases := []struct {
		name    string
		set     func(t *testing.T, name string)
		subject string   // empty: v1.<name>.example.com
		code    int      // exit code
		want    []string // in its output
	}{
		{"blackhole", func(t *testing.T, name string) { // nobody has the address, and nothing says so
			netns.IP(t, "route add 10.78.0.0/16 dev lo")
			w.register(t, name, 8443, "10.78.0.1")
		}, "", 3, []string{"FailedDiscoveryCheck", "drops the packets"}},
		{"refused", fault(extension.Refuse), "", 3, []string{"nothing listens at the endpoint's address"}},
		{"wrong-ca", fault(extension.WrongCA), "", 3, []string{"not signed by spec.caBundle"}},
		{"expired", fault(extension.Expired), "", 3, []string{"has expired: renew it"}},
		{"wrong-san", fault(extension.WrongName), "", 3, []string{"lacks the service's name", "wrong-san.operate.svc"}},
		{"cn-not-allowed", func(t *testing.T, name string) {
			w.serve(t, name, func(c *extension.Config) { c.AllowedNames = []string{"somebody-else"} })
		}, "", 3, []string{"requestheader-allowed-names"}},
		{"hung", fault(extension.Hang), "", 3, []string{"it hangs"}},
		{"shadowed", func(t *testing.T, name string) { w.serve(t, name, nil); w.apply(t, definition("things", name)) }, "", 0, []string{
			"CustomResourceDefinition things.shadowed.example.com serves shadowed.example.com/v1 too", "Destination:   forwarded to operate/shadowed:",
		}},
		{"well", func(t *testing.T, name string) { w.serve(t, name, nil) }, "/apis/well.example.com/v1/widgets?watch=true", 0, []string{
			"Destination:   forwarded to operate/well:", "Timeout:       long-running: none", "TLS name:      well.operate.svc", "x-remote-user: admin", "healthy",
		}},
	}
	for _, c := range cases { // their servers run until lint has seen them
		c.set(t, c.name)
	}
	t.Run("broken", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if c.subject == "" {
					c.subject = "v1." + c.name + ".example.com"
				}
				suite.Eventually(t, time.Minute, "explained", func() (bool, string) {
					a := command(t, "", w.fairlead, "explain", c.subject, "--kubeconfig", w.admin)
					missing := slices.ContainsFunc(c.want, func(want string) bool { return !strings.Contains(a.Out, want) })
					return a.Code == c.code && !missing, fmt.Sprintf("exit code %d\n%s%s", a.Code, a.Out, a.Errs)
				})
			})
		}
	})
	t.Run("plugin", func(t *testing.T) { testPlugin(t, w) })
	t.Run("lint", func(t *testing.T) { // asks backends for their certificates only
		a := command(t, "", w.fairlead, "lint", "--kubeconfig", w.direct, "--allow-loopback-backends")
		check.Same(t, 1, a.Code, "exit code: %s", a.Errs)
		check.Has(t, a.Out, "UnknownAuthority", "ExpiredCertificate", "WrongServerName", "it shadows CustomResourceDefinition things.shadowed.example.com")
	})
}

func testPlugin(t *testing.T, w *world) {
	path := "PATH=" + w.dir + ":" + os.Getenv("PATH")
	a := command(t, "", "env", path, w.kubectl, "fairlead", "status", "--kubeconfig", w.admin)
	check.Same(t, 3, a.Code, "exit code: %s", a.Errs)
	check.Has(t, a.Out, "v9.batch ", "ProtectedGroup")
	check.Has(t, succeed(t, "", "env", path, w.kubectl, "fairlead", "explain", "--help"), "kubectl fairlead explain PATH|RESOURCE|APISERVICE") // as it was called
}
