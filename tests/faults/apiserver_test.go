//go:build e2e

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testAPIServer kills one of two kube-apiservers under load, the one of Fairlead's own watches.
// Requests without an answer yet must succeed; an answer that is cut off must not look complete.
func testAPIServer(t *testing.T, d *door) {
	w := d.w
	configMaps := w.fill(t)
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
		"GET by certificate": {Every: 20 * time.Millisecond, Clients: w.clients(3, true), Make: small, Check: whole},
		"GET by token":       {Every: 20 * time.Millisecond, Clients: []*http.Client{token}, Make: small, Check: whole},
		"LIST of 1 MB":       {Every: 100 * time.Millisecond, Clients: w.clients(3, true), Make: lists, Check: whole},
	}
	for _, l := range loads {
		l.Start(t)
	}
	suite.Pause(t, steadyPause)
	w.APIServers[0].Kill()
	killed := time.Now()
	suite.Pause(t, 5*time.Second)
	must.Do(t, w.APIServers[0].Restart(t.Context()))
	suite.Pause(t, steadyPause)
	for name, l := range loads {
		t.Run(name, func(t *testing.T) {
			shots := l.Stop()
			mustSucceed(t, shots, 0)
			for _, s := range shots {
				if s.Cut() && s.Began.After(killed.Add(time.Second)) {
					t.Errorf("cut off long after the kill: %s", &s)
				}
			}
		})
	}
	t.Run("Fairlead's own watches go on", func(t *testing.T) {
		b := w.newBackend()
		b.register(t)
		eventually(t, "a new APIService is known", func() bool { _, known := d.scrape()[b.verdict()]; return known })
	})
}

// testOnlyAPIServer restarts the only kube-apiserver of a Fairlead. Meanwhile the reads of
// client-go are slow, and do not fail: a request waits for some seconds, and if that does not help,
// its client is asked to retry later.
func testOnlyAPIServer(t *testing.T, d *door) {
	w := d.w
	w.fill(t)
	x := w.newDoorTo(t, []string{w.EndpointOf(0).URL})
	client := must.Get(kubernetes.NewForConfig(x.Endpoint.RESTConfig(w.Admin())))(t)
	ctx, cancel := context.WithCancel(t.Context())
	reads, ended := 0, make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		for cuts := 0; ctx.Err() == nil; reads++ {
			_, err := client.CoreV1().ConfigMaps("full").Get(ctx, "big-2", metav1.GetOptions{})
			if err == nil || ctx.Err() != nil {
				continue
			}
			// At most one answer was half sent when the kube-apiserver was killed. Its status
			// cannot be changed any more, and its client gets an error.
			if cuts++; !strings.Contains(err.Error(), "reading response body") || cuts > 1 {
				t.Errorf("read %d: %v", reads, err)
			}
		}
	}()
	suite.Pause(t, steadyPause)
	w.APIServers[0].Kill()
	must.Do(t, w.APIServers[0].Restart(t.Context()))
	suite.Pause(t, steadyPause)
	cancel()
	<-ended
	t.Logf("%d reads", reads)
}

// fill makes twenty ConfigMaps of 50 KB, and returns their path.
func (w *world) fill(t *testing.T) string {
	t.Helper()
	const name = "full"
	_, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for i := range 20 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("big-%d", i)}, Data: map[string]string{"x": strings.Repeat("x", 50<<10)}}
		_, err := w.core.CoreV1().ConfigMaps(name).Create(t.Context(), cm, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return "/api/v1/namespaces/" + name + "/configmaps"
}
