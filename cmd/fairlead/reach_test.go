package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/apiserver"
)

// The local apiserver's probe results reach its pools, and its lost connections the prober.
func TestLocalApiserverIsProbed(t *testing.T) {
	var unready atomic.Bool
	var asked atomic.Value
	s := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Proto + " " + r.URL.Path + " " + r.Header.Get("X-Remote-User") + " " + r.TLS.PeerCertificates[0].Subject.CommonName)
		if unready.Load() {
			http.Error(w, "[-]etcd failed", http.StatusInternalServerError)
		}
	})
	d := doorBefore(t, s.URL)
	for _, name := range []string{"local apiserver's pools", "local apiserver's prober"} {
		must.Run(t, d.loops[name])
	}
	until := func(want registry.Health, message string) {
		t.Helper()
		must.Soon(t, 20*time.Second, "its health is known "+message, func() bool {
			e := d.kube.list()[0]
			return e.Health == want && strings.Contains(e.Message, message)
		})
	}
	until(registry.Healthy, "")
	check.Same[any](t, "HTTP/2.0 /readyz system:kube-aggregator front", asked.Load(), "the question")
	page := httptest.NewRecorder()
	d.pages.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/status", nil))
	check.Has(t, page.Body.String(), `"probed": "`)
	unready.Store(true)
	s.CloseClientConnections()
	until(registry.Unhealthy, "500: [-]etcd failed")
	unready.Store(false)
	until(registry.Healthy, "")
}

// No document is taken from a local apiserver that is not ready: its discovery lacks CRDs that it has not read yet.
func TestDocumentsOfAReadyApiserver(t *testing.T) {
	var d *server
	report := func(h registry.Health) {
		d.kube.pools.Report(registry.Report{Endpoint: registry.Endpoint{Address: d.kube.list()[0].Address, Health: h}})
	}
	restarts, asked := false, 0
	d = doorBefore(t, serverAt(t, "127.0.0.1", func(http.ResponseWriter, *http.Request) {
		if asked++; restarts {
			report(registry.Unhealthy)
		}
	}).URL)
	must.Run(t, d.loops["local apiserver's pools"])
	must.Run(t, func(ctx context.Context) error { return cmp.Or(d.loops["HTTP/2"](ctx), ctx.Err()) })
	fetch := func(ctx context.Context) error {
		res, err := d.fromLocal(d.kube.list()[0].Address)(ctx, must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "https://local/apis", nil))(t))
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fetch(over); !errors.Is(err, errNotHealthy) || asked > 0 {
		t.Errorf("before it is ready: %v, asked %d times", err, asked)
	}
	go report(registry.Healthy)
	must.Do(t, fetch(t.Context()))
	restarts = true
	if err := fetch(t.Context()); err == nil {
		t.Error("the answer of one that has restarted meanwhile is taken")
	}
	check.Same(t, 2, asked, "requests")
}

// The leader writes an Event to the local apiserver for a new APIService that is not available.
// Without --emit-events, it writes none.
func TestEventsReachTheLocalApiserver(t *testing.T) {
	written := make(chan string, 100)
	s := serverAt(t, "127.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		_, _ = w.Write(body) // it accepts every write
		written <- r.URL.Path + string(body)
	})
	d := doorBefore(t, s.URL, "--emit-events", "--registry=dir:"+t.TempDir())
	for _, name := range []string{"table", "events"} {
		must.Run(t, d.loops[name])
	}
	group := "a" // the first ones may exist before it leads
	must.Soon(t, 20*time.Second, "an Event", func() bool {
		group += "a"
		d.claim(t, group+".example.com", "none")
		select {
		case got := <-written:
			return strings.HasPrefix(got, "/api/v1/namespaces/default/events") && strings.Contains(got, registry.ReasonInvalidURL)
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
	quiet := doorBefore(t, s.URL, "--write-status").loops
	check.Same(t, true, quiet["events"] == nil && quiet["status writer"] != nil, "events: %v, status writer: %v", quiet["events"] != nil, quiet["status writer"] != nil)
}

// --allow-url-backends reaches the table; without it, an APIService by URL of a cluster is invalid.
// So does --ca-rotation-overlap, whose 0 is none, not the default.
func TestAllowURLBackends(t *testing.T) {
	cluster := apiserver.New()
	cluster.Put(&apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.far.example.com", Annotations: map[string]string{"fairlead.dev/url": "https://far.example.com"}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "far.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 1, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "x", Name: "nobody"},
		},
	})
	s := serverAt(t, "127.0.0.1", cluster.ServeHTTP)
	for overlap, allowed := range map[time.Duration]bool{0: false, time.Hour: true} {
		args := []string{"--ca-rotation-overlap", overlap.String()}
		if allowed {
			args = append(args, "--allow-url-backends")
		}
		d := doorBefore(t, s.URL, args...)
		must.Run(t, d.registry.Run)
		must.Soon(t, 20*time.Second, "the table is complete", func() bool { return d.registry.Table().Complete() })
		e := d.registry.Table().Entries()[0]
		check.Same(t, true, (len(e.Endpoints) == 1) == allowed && (e.Verdict.Reason == registry.ReasonInvalidURL) != allowed, "allowed %v: %+v %v", allowed, e.Verdict, e.Endpoints)
		check.Same(t, overlap, e.Settings.CAOverlap, "overlap")
	}
}
