//go:build e2e

package differential

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// world is a cluster with Fairlead beside its kube-apiserver.
type world struct {
	*cluster.Cluster
	front    *cluster.Front
	start    func(lane string) (*cluster.Front, error) // another Fairlead
	clients  map[string]*http.Client                   // :: URL of a server → an administrator of it
	core     kubernetes.Interface
	services aggregator.Interface
	dynamic  dynamic.Interface
}

func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the parts may have to be built first
	defer cancel()
	dir, err := os.MkdirTemp("", "fairlead-differential-") //nolint:usetesting // the logs are what one needs when a case fails
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs of all parts: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	binary := filepath.Join(dir, "fairlead")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "../../cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("building fairlead: %v\n%s", err, out)
	}
	w := &world{Cluster: c, clients: map[string]*http.Client{}}
	w.start = func(lane string) (*cluster.Front, error) {
		return c.StartFairlead(t.Context(), cluster.Fairlead{Path: binary, Name: "fairlead-" + lane, Args: append([]string{"--http2=" + strconv.FormatBool(lane == "h2")}, args...)})
	}
	if w.front, err = w.start("h2"); err != nil {
		t.Fatal(err)
	}
	rc := c.Endpoint().RESTConfig(c.Admin())
	w.core, w.services, w.dynamic = kubernetes.NewForConfigOrDie(rc), aggregator.NewForConfigOrDie(rc), dynamic.NewForConfigOrDie(rc)
	for _, e := range []cluster.Endpoint{c.Endpoint(), w.front.Endpoint} {
		w.clients[e.URL] = client(t, e, c.Admin())
	}
	return w
}

// eachLane runs a test over each protocol that Fairlead offers its clients, all in the same cluster.
func (w *world) eachLane(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	front, err := w.start("http1")
	if err != nil {
		t.Fatal(err)
	}
	other := *w
	other.front = front
	w.clients[front.Endpoint.URL] = client(t, front.Endpoint, w.Admin())
	t.Run("h2", func(t *testing.T) { f(t, w) })
	t.Run("http1", func(t *testing.T) { f(t, &other) })
}

func client(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(e.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	pair, err := tls.LoadX509KeyPair(cr.Pair.CertFile, cr.Pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		DisableCompression: true, // what is compressed is asked for by name
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is what a server said.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one GET.
func (w *world) ask(t *testing.T, e cluster.Endpoint, path string, header http.Header) answer {
	t.Helper()
	return w.send(t, http.MethodGet, e, path, header)
}

func (w *world) send(t *testing.T, method string, e cluster.Endpoint, path string, header http.Header) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, e.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	res, err := w.clients[e.URL].Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

// eventually asks until ok says yes, or reports the last answer when the time is over.
func eventually(t *testing.T, within time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return time.Since(begun)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %s", what, last)
		case <-tick.C:
		}
	}
}
