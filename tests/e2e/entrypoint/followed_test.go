//go:build e2e

package entrypoint

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

// startAt starts a cluster whose first kube-apiserver has this address.
func startAt(t *testing.T, dir, ip string, args ...string) *world {
	t.Helper()
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin"))}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: append(at(ip), args...)})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	return w
}

// at returns the arguments that give a kube-apiserver an address. All that publish themselves have one port.
func at(ip string) []string {
	return []string{"--bind-address=" + ip, "--advertise-address=" + ip, "--secure-port=7443"}
}

// kube-apiservers that publish themselves, as in most clusters, come and go, and are replaced one
// after the other as in an upgrade. Nobody tells Fairlead, and no request fails.
func TestFollowed(t *testing.T) {
	const one, two = "10.80.1.1:7443", "10.80.1.2:7443"
	netns.Up(t, "10.80.0.0/16")
	w := startAt(t, suite.Folder(t, "followed"), "10.80.1.1", "--endpoint-reconciler-type=lease", "--shutdown-delay-duration=10s")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Address: "10.80.0.1", Args: []string{"--local-apiservers-from=endpointslice"},
	}))(t)
	servers := func(want ...string) { t.Helper(); w.servers(t, front, want...) }
	servers(one)
	load := w.load(t, front.Endpoint, w.StaticToken("admin").Token)
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

// servers waits until these local apiservers of a Fairlead are healthy, and no others.
func (w *world) servers(t *testing.T, front *cluster.Front, want ...string) {
	t.Helper()
	took := suite.Eventually(t, time.Minute, strings.Join(want, ", "), func() (bool, string) {
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

// Where Fairlead publishes itself, the Leases of kube-apiservers name them.
func TestLeased(t *testing.T) {
	netns.Up(t, "10.81.0.0/16")
	dir := suite.Folder(t, "leased")
	host := must.Get(os.Hostname())(t)
	hosts := filepath.Join(dir, "hosts")
	suite.Put(t, hosts, "127.0.0.1 localhost\n10.81.1.1 "+host+"\n10.81.1.2 kube-apiserver-1\n")
	must.Do(t, exec.CommandContext(t.Context(), "mount", "--bind", hosts, "/etc/hosts").Run()) // ends with this process's namespace
	w := startAt(t, dir, "10.81.1.1", "--endpoint-reconciler-type=none")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Address: "10.81.0.1", Args: []string{"--local-apiservers-from=lease", "--publish-kubernetes-endpoints", "--advertise-address=10.81.0.1"},
	}))(t)
	w.servers(t, front, "10.81.1.1:7443", host+":7443") // the first leaves once the other is known
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], at("10.81.1.2")...))
	w.servers(t, front, "10.81.1.1:7443", "kube-apiserver-1:7443", host+":7443")
	w.publishes(t, 5*time.Second, strings.TrimPrefix(front.Endpoint.URL, "https://"))
}
