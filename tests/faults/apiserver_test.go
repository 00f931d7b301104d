//go:build e2e

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testAPIServer kills one of two kube-apiservers under load, the one of Fairlead's own watches.
// Requests without an answer yet must succeed; an answer that is cut off must not look complete.
func testAPIServer(t *testing.T, d *door) {
	w := d.w
	configMaps := w.fill(t)
	huge := w.store(t, "huge", 20, 900<<10)
	token := suite.Client(t, w.Endpoint(), w.StaticToken("admin"))
	token.Timeout = 0 // the load has its own timeout
	small := func(i int) (string, string, string) {
		return http.MethodGet, fmt.Sprintf("%s%s/big-%d", d.Endpoint.URL, configMaps, i%20), ""
	}
	lists := func(int) (string, string, string) { return http.MethodGet, d.Endpoint.URL + configMaps, "" }
	whole := func(body []byte) error {
		if !json.Valid(body) {
			return errors.New("not JSON")
		}
		return nil
	}
	loads := map[string]*volley.Load{
		"GET by certificate": {Every: 20 * time.Millisecond, Clients: w.clients(3), Make: small, Check: whole},
		"GET by token":       {Every: 20 * time.Millisecond, Clients: []*http.Client{token}, Make: small, Check: whole},
		"LIST of 1 MB":       {Every: 100 * time.Millisecond, Clients: w.clients(3), Make: lists, Check: whole},
	}
	for _, l := range loads {
		l.Start(t)
	}
	end := w.ask(t, d)
	suite.Pause(t, steadyPause)
	halves := w.openLists(t, d, huge)
	victim := w.APIServers[0]
	victim.Kill()
	killed := time.Now()
	suite.Pause(t, 5*time.Second)
	t.Logf("killed at %s, started again from %s", killed.Format("15:04:05.000"), time.Now().Format("15:04:05.000"))
	must.Do(t, victim.Restart(t.Context()))
	suite.Pause(t, steadyPause)
	end()
	for name, l := range loads {
		t.Run(name, func(t *testing.T) {
			shots := l.Stop()
			mustSucceed(t, shots, 0)
			cut := 0
			for _, s := range shots {
				if s.Cut() {
					cut++
					if s.Began.After(killed.Add(time.Second)) {
						t.Errorf("cut off long after the kill: %s", &s)
					}
				}
			}
			t.Logf("%d answers were cut off, and their clients noticed", cut)
		})
	}
	t.Run("cut in the middle", func(t *testing.T) {
		cut := 0
		for _, res := range halves {
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				cut++
			} else if err := whole(body); err != nil {
				t.Errorf("an answer of %d bytes looks complete and is %v", len(body), err)
			}
		}
		t.Logf("%d of %d answers were cut off, and their clients noticed", cut, len(halves))
		if cut == 0 || cut == len(halves) {
			t.Errorf("%d of %d answers were cut off, want those of one kube-apiserver", cut, len(halves))
		}
	})
	t.Run("Fairlead's own watches go on", func(t *testing.T) {
		b := w.newBackend()
		b.register(t)
		eventually(t, longest, "a new APIService is known", func() bool {
			_, known := d.scrape()[fmt.Sprintf("aggregator_unavailable_apiservice{name=%q}", b.apiService())]
			return known
		})
	})
}

// testOnlyAPIServer restarts the only kube-apiserver of a Fairlead. Meanwhile the reads of ordinary
// clients are slow, and do not fail: a request waits for some seconds, and if that does not help,
// its client is asked to retry later.
func testOnlyAPIServer(t *testing.T, d *door) {
	w := d.w
	w.fill(t)
	x := w.newDoorTo(t, d.lane, []string{w.EndpointOf(0).URL})
	end := w.ask(t, x)
	suite.Pause(t, steadyPause)
	w.APIServers[0].Kill()
	killed := time.Now()
	must.Do(t, w.APIServers[0].Restart(t.Context()))
	t.Logf("back after %s", time.Since(killed).Round(time.Millisecond))
	suite.Pause(t, steadyPause)
	end()
}

// fill makes twenty ConfigMaps of 50 KB, and returns their path.
func (w *world) fill(t *testing.T) string { return w.store(t, "full", 20, 50<<10) }

// store makes n ConfigMaps of size bytes in a namespace, and returns their path.
func (w *world) store(t *testing.T, namespace string, n, size int) string {
	t.Helper()
	_, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for i := range n {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", size)}}
		_, err := w.core.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}

// openLists requests six lists of 18 MB and reads only what fits a small window of each. Fairlead's
// largest window of a stream is 16 MiB.
func (w *world) openLists(t *testing.T, d *door, path string) []*http.Response {
	t.Helper()
	c := w.client()
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}
	var list []*http.Response
	for range 6 {
		list = append(list, must.Get(ask.Open(t.Context(), c, d.Endpoint.URL+path, nil))(t))
	}
	return list
}

// ask lets kubectl and client-go send the load's requests in sequence until end is called. None may
// be refused.
func (w *world) ask(t *testing.T, d *door) (end func()) {
	t.Helper()
	kubectl := suite.Tool(t, "kubectl")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, d.Endpoint.WriteKubeconfig(kubeconfig, w.Admin()))
	client := must.Get(kubernetes.NewForConfig(d.Endpoint.RESTConfig(w.Admin())))(t)
	cache := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	count := map[string]int{}
	ask := func(name string, f func() error) {
		n, cuts := 0, 0
		for ctx.Err() == nil {
			if err := f(); err != nil && ctx.Err() == nil {
				// At most one answer was half sent when the kube-apiserver was killed. Its status
				// cannot be changed any more, and its client gets an error.
				if cuts++; !strings.Contains(err.Error(), "reading response body") || cuts > 1 {
					t.Errorf("%s at %s: %v", name, time.Now().Format("15:04:05.000"), err)
					break
				}
				t.Logf("%s at %s: %v", name, time.Now().Format("15:04:05.000"), err)
			}
			n++
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		count[name] = n
	}
	asking.Go(func() {
		ask("kubectl get", func() error {
			out, err := exec.CommandContext(ctx, kubectl, "--kubeconfig", kubeconfig, "--cache-dir", cache, "get", "configmap", "big-1", "-n", "full", "-o", "name").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return nil
		})
	})
	asking.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		ask("client-go Get", func() error {
			<-tick.C
			_, err := client.CoreV1().ConfigMaps("full").Get(ctx, "big-2", metav1.GetOptions{})
			return err
		})
	})
	return func() {
		cancel()
		asking.Wait()
		t.Logf("requests: %v", count)
	}
}
