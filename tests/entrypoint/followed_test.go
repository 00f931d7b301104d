//go:build e2e

package entrypoint

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// kube-apiservers that publish themselves, as in most clusters, come and go, and are replaced one
// after the other as in an upgrade. Nobody tells Fairlead, and no request fails.
func TestFollowed(t *testing.T) {
	const one, two = "10.80.1.1:7443", "10.80.1.2:7443"
	netns.Up(t, "10.80.0.0/16")
	dir := suite.Folder(t, "followed")
	at := func(host string) []string {
		return []string{"--bind-address=" + host, "--advertise-address=" + host, "--secure-port=7443"}
	}
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin"))}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: append(at("10.80.1.1"), "--endpoint-reconciler-type=lease", "--shutdown-delay-duration=10s")})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Address: "10.80.0.1", Args: []string{"--local-apiservers-from=endpointslice"},
	}))(t)
	// servers waits until Fairlead sends requests to exactly these.
	servers := func(want ...string) {
		t.Helper()
		took := suite.Eventually(t, 30*time.Second, strings.Join(want, ", "), func() (bool, string) {
			var got []string
			for name, n := range w.scrape(t, front) {
				if address, ok := strings.CutPrefix(name, `fairlead_local_apiserver_healthy{address="`); ok && n == 1 {
					got = append(got, strings.TrimSuffix(address, `"}`))
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want), strings.Join(got, ", ")
		})
		t.Logf("%v after %s", want, took)
	}
	servers(one)
	load := &volley.Load{Every: 10 * time.Millisecond, Make: func(int) (string, string, string) {
		return http.MethodPost, front.Endpoint.URL + "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"name":"more"}}`
	}}
	for range 8 {
		load.Clients = append(load.Clients, suite.Client(t, front.Endpoint, w.Admin()))
	}
	load.Start(t)
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], at("10.80.1.2")...))
	servers(one, two)
	for i, rest := range []string{two, one} {
		part := w.APIServers[i]
		must.Do(t, part.Signal(syscall.SIGTERM))
		<-part.Done()
		servers(rest)
		must.Do(t, part.Restart(t.Context()))
		servers(one, two)
	}
	volley.Judge(t, load.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusCreated || s.Err != nil })
	for line := range strings.SplitSeq(string(must.Get(os.ReadFile(front.Part.LogFile()))(t)), "\n") {
		if strings.Contains(line, "local apiserver") {
			t.Log(line)
		}
	}
}
