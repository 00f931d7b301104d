//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// connects is how many connections clients make, and replaced how often the process is replaced meanwhile.
const connects, replaced = 10_000, 5

// A Fairlead that is replaced on its host again and again refuses no connection of clients that connect all the time.
// kube-apiserver with the same flag does.
func TestPortSharing(t *testing.T) {
	w := suite.Start(t, cluster.Config{Dir: suite.Folder(t, "sharing"), APIServerArgs: []string{"--permit-port-sharing=true"}})
	path := suite.Build(t, t.TempDir())
	var front *cluster.Front
	start := func(n int) *cluster.Part {
		f := cluster.Fairlead{Path: path, Name: fmt.Sprint("fairlead-", n), Args: []string{"--permit-port-sharing"}}
		if front != nil {
			f.Port, f.AdminPort = portOf(t, front.Endpoint), portOf(t, front.Admin)
		}
		front = must.Get(w.StartFairlead(t.Context(), f))(t)
		return front.Part
	}
	first := start(0)
	here := underConnects(t, w, front.Endpoint, first, "msg=ready", start)
	must.Do(t, front.Part.Stop(5*time.Minute)) // a kube-apiserver waits a minute for its watches
	there := underConnects(t, w, w.Endpoint(), w.APIServers[0], "Serving securely", func(int) *cluster.Part {
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], fmt.Sprint("--secure-port=", portOf(t, w.Endpoint()))))
		return w.APIServers[len(w.APIServers)-1]
	})
	t.Logf("of %d connections during %d replacements failed here: %v; at kube-apiserver: %v", connects, replaced, here, there)
	check.Same(t, 0, len(here), "connections that failed: %v", here)
}

func portOf(t *testing.T, e cluster.Endpoint) int {
	t.Helper()
	return must.Get(strconv.Atoi(must.Get(url.Parse(e.URL))(t).Port()))(t)
}

// underConnects replaces a process by what start starts while clients connect. It returns how many connections failed,
// by error or status: in each there is a TLS handshake and a GET.
func underConnects(t *testing.T, w *cluster.Cluster, e cluster.Endpoint, old *cluster.Part, ready string, start func(int) *cluster.Part) map[string]int {
	t.Helper()
	config := suite.TLS(t, e, cluster.Credentials{})
	var clients sync.WaitGroup
	var made atomic.Int64
	var ended atomic.Bool
	var mu sync.Mutex
	failed := map[string]int{}
	defer clients.Wait()
	defer ended.Store(true)
	for range 8 {
		clients.Go(func() {
			for made.Add(1) <= connects || !ended.Load() {
				c := &http.Client{Transport: &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}, Timeout: time.Minute}
				res, err := c.Get(e.URL + "/version")
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				if err == nil && res.StatusCode == http.StatusOK {
					continue
				}
				mu.Lock()
				for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
					err = inner
				}
				if err == nil {
					err = errors.New(res.Status)
				}
				failed[err.Error()]++
				mu.Unlock()
			}
		})
	}
	for n := range replaced {
		next := start(n + 1)
		suite.Eventually(t, 5*time.Minute, next.Name()+" is ready", func() (bool, string) {
			log := must.Get(os.ReadFile(next.LogFile()))(t)
			return bytes.Contains(log, []byte(ready)), ""
		})
		must.Do(t, old.Signal(syscall.SIGTERM))
		suite.Eventually(t, 5*time.Minute, old.Name()+" has ended", func() (bool, string) { return old.Ended(), "" })
		old = next
	}
	ended.Store(true)
	clients.Wait()
	return failed
}
