//go:build e2e

package behind

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// Names and paths of APIServices.
const (
	beta     = "v1beta1.wardle.example.com"
	alpha    = "v1alpha1.wardle.example.com"
	metrics  = "v1beta1.metrics.k8s.io"
	external = "v1beta1.external.metrics.k8s.io"
	custom   = "v1beta2.custom.metrics.k8s.io"
	flunders = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders"
)

// TestBehind tells what an APIService behind Fairlead does that it does not behind the aggregator
// alone: first where that reaches no extension server, then where it does.
func TestBehind(t *testing.T) {
	w := newWorld(t)
	must.Get(w.StartNode(t.Context(), w.Endpoint(), "harbour", controlPlane))(t)
	w.sample(t)
	adapter := w.adapter(t)
	w.metrics(t)
	t.Run("alone", func(t *testing.T) { testAlone(t, w) })
	t.Log(w.succeed(t, "adopt", beta, alpha, "--dry-run"))
	a := must.Get(w.objects.Get(t.Context(), beta, metav1.GetOptions{}))(t)
	check.Same(t, true, len(a.Annotations) == 0 && a.Spec.Service.Name == "api", "--dry-run has changed it: %+v", a)
	for range 2 { // the second time, nothing is to be done
		t.Log(w.succeed(t, "adopt", beta, alpha, metrics, external, custom))
	}
	suite.Cases[*world]{
		{Name: "documents", Run: testDocuments},
		{Name: "both sides", Run: testBothSides},
		{Name: "identity", Run: testIdentity},
		{Name: "updates", Run: testUpdates},
		{Name: "controllers", Run: testControllers},
		{Name: "top", Run: testTop},
	}.Run(t, w)
	netns.IP(t, "route add 10.80.0.0/16 via 10.81.0.2") // from now on the aggregator reaches pods
	suite.Cases[*world]{
		{Name: "moves", Run: testMoves},
		{Name: "interrupted", Run: testInterrupted},
		{Name: "replicas", Run: testReplicas},
		{Name: "gone", Run: func(t *testing.T, w *world) { testGone(t, w, adapter) }},
	}.Run(t, w)
}

// testAlone shows what fails with the aggregator alone, which reaches no extension server.
func testAlone(t *testing.T, w *world) {
	for _, name := range []string{beta, metrics, external} {
		suite.Eventually(t, 30*time.Second, name+" is unavailable", func() (bool, string) {
			a := w.kubectl.Try(t, "", "get", "apiservice", name, "-o=jsonpath={.status.conditions[0].reason}")
			return a.Out == "FailedDiscoveryCheck", a.Out + a.Errs
		})
	}
	for command, want := range map[string]string{
		"get flunders":          `the server doesn't have a resource type "flunders"`,
		"explain flunders.spec": `the server doesn't have a resource type "flunders"`,
		"top nodes":             "Metrics API not available",
	} {
		w.kubectl.Fail(t, want, "", strings.Fields(command)...)
	}
}

// load sends requests through the aggregator, fifty a second.
func (w *world) load(t *testing.T, path string, methods ...string) *volley.Load {
	t.Helper()
	client := *w.admin
	client.Timeout = 15 * time.Second // Fairlead finds a hung server within 12 s
	l := &volley.Load{Every: 20 * time.Millisecond, Clients: []*http.Client{&client}, Make: func(i int) (method, url, body string) {
		if method = methods[i%len(methods)]; method == http.MethodPost {
			return method, w.Endpoint().URL + path, fmt.Sprintf(`{"apiVersion":"wardle.example.com/v1beta1","kind":"Flunder","metadata":{"generateName":"f-%d-"}}`, i)
		}
		return method, w.Endpoint().URL + path + "?limit=1", ""
	}, Again: func(s *volley.Shot) bool { // as client-go: a server that has just started reads its objects first
		return s.Code == http.StatusTooManyRequests && s.Repeated < 10
	}}
	return l.Start(t)
}

// ended ends a load, and returns how many requests failed.
func ended(t *testing.T, what string, l *volley.Load) (failed int) {
	t.Helper()
	shots := l.Stop()
	for i := range shots {
		if s := &shots[i]; s.Code != http.StatusOK && s.Code != http.StatusCreated {
			if failed++; failed < 3 {
				t.Logf("%s: %+v", what, s)
			}
		}
	}
	t.Logf("%s: %d of %d requests failed", what, failed, len(shots))
	return failed
}

// testMoves moves each under load.
func testMoves(t *testing.T, w *world) {
	for name, path := range map[string]string{
		beta: flunders, metrics: "/apis/metrics.k8s.io/v1beta1/nodes", external: "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/my-external-metric",
	} {
		t.Run(name, func(t *testing.T) {
			methods := []string{http.MethodGet}
			if name == beta {
				methods = append(methods, http.MethodPost)
			}
			l := w.load(t, path, methods...)
			for _, command := range []string{"release", "release", "adopt", "release"} {
				w.succeed(t, command, name)
			}
			check.Same(t, 0, ended(t, name, l), "requests have failed")
		})
	}
	w.succeed(t, "adopt", external)
}

// testInterrupted begins moves and does not end them, and moves it to a Service where nobody is.
func testInterrupted(t *testing.T, w *world) {
	before := must.Get(w.objects.Get(t.Context(), beta, metav1.GetOptions{}))(t)
	unchanged := func() {
		t.Helper()
		after := must.Get(w.objects.Get(t.Context(), beta, metav1.GetOptions{}))(t)
		if diff := cmp.Diff(before.Spec, after.Spec) + cmp.Diff(before.Annotations, after.Annotations, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("before (-), after (+):\n%s", diff)
		}
	}
	for service, want := range map[string]string{"nobody": "has no ready endpoint", "down": "the change was undone"} {
		a := w.run(t, "adopt", beta, "--service=kube-system/"+service+":443", "--wait=6s")
		check.Same(t, 1, a.Code, "exit code of adopt to %s: %s", service, a.Out)
		check.Has(t, a.Errs, want)
		unchanged()
	}
	must.Do(t, w.WaitAvailable(t.Context(), w.Endpoint(), "wardle.example.com/v1beta1"))
	l := w.load(t, flunders, http.MethodGet, http.MethodPost)
	for _, life := range []int{100, 150, 200, 250, 300, 400, 600, 1000, 1300, 3000} { // ms: it takes 100 to read the kubeconfig
		for _, command := range []string{"adopt", "release"} {
			ctx, kill := context.WithTimeout(t.Context(), time.Duration(life)*time.Millisecond)
			_ = w.command(ctx, command, beta).Run() // killed
			kill()
		}
	}
	w.succeed(t, "adopt", beta)
	w.succeed(t, "release", beta)
	check.Same(t, 0, ended(t, beta, l), "requests have failed")
	unchanged()
}

// testReplicas breaks one of two extension servers in each way, under load through Fairlead, and
// beside it through the aggregator alone.
func testReplicas(t *testing.T, w *world) {
	w.succeed(t, "adopt", beta)
	w.succeed(t, "release", alpha)
	wrong := must.Get(w.PKI.NewAuthority("another-serving-ca"))(t)
	issue := func(t *testing.T, a *cluster.Authority) {
		t.Helper()
		must.Get(a.Issue("sample-apiserver3", cluster.Leaf{User: "api", Names: []string{"api.wardle.svc"}}))(t)
	}
	restart := func(t *testing.T, p *cluster.Part) {
		t.Helper()
		p.Kill()
		must.Do(t, p.Restart(t.Context()))
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"hung", func(t *testing.T) {
			t.Helper()
			must.Do(t, w.samples[0].Signal(syscall.SIGSTOP))
			suite.Pause(t, 20*time.Second)
			restart(t, w.samples[0])
		}},
		{"killed", func(t *testing.T) {
			t.Helper()
			w.samples[0].Kill()
			suite.Pause(t, 5*time.Second)
			must.Do(t, w.samples[0].Restart(t.Context()))
		}},
		{"a wrong certificate", func(t *testing.T) {
			t.Helper()
			issue(t, wrong)
			restart(t, w.samples[0])
			suite.Pause(t, 5*time.Second)
			issue(t, w.PKI.Serving)
			restart(t, w.samples[0])
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.allHealthy(t)
			through := w.load(t, flunders, http.MethodGet) // nobody repeats a POST that a server may have read
			alone := w.load(t, strings.Replace(flunders, "v1beta1", "v1alpha1", 1), http.MethodGet)
			suite.Pause(t, time.Second)
			tt.do(t)
			w.allHealthy(t)
			check.Same(t, 0, ended(t, "through Fairlead", through), "requests have failed")
			check.Same(t, true, ended(t, "the aggregator alone", alone) != 0, "it needs no Fairlead")
		})
	}
}

// testUpdates ends one of two Fairleads as a rolling update does.
func testUpdates(t *testing.T, w *world) {
	l := w.load(t, flunders, http.MethodGet, http.MethodPost)
	for i, f := range w.fronts {
		w.publish(t, "fairlead", fairleads[1-i]) // as when a pod is being deleted
		must.Do(t, f.Part.Signal(syscall.SIGTERM))
		<-f.Part.Done()
		must.Do(t, f.Part.Restart(t.Context()))
		w.publish(t, "fairlead", fairleads...)
		suite.Pause(t, time.Second)
	}
	check.Same(t, 0, ended(t, "updated", l), "requests have failed")
}

// testDocuments compares what the cluster shows of APIServices that it sends to Fairlead.
func testDocuments(t *testing.T, w *world) {
	for command, want := range map[string]string{
		"api-resources --api-group=wardle.example.com":                    "flunders",
		"explain flunders.spec":                                           "flunderReference",
		"get --raw /openapi/v3":                                           "openapi/v3/apis/wardle.example.com/v1beta1",
		"get --raw /openapi/v2":                                           "/apis/wardle.example.com/v1beta1/namespaces/{namespace}/flunders",
		"get flunders.v1beta1.wardle.example.com -w --request-timeout=2s": "",
	} {
		suite.Eventually(t, 30*time.Second, command, func() (bool, string) {
			a := w.kubectl.Try(t, "", strings.Fields(command)...)
			return a.Code == 0 && strings.Contains(a.Out, want), fmt.Sprintf("%d %.300s %s", a.Code, a.Out, a.Errs)
		})
	}
	aggregator := suite.Client(t, w.fronts[0].Endpoint, cluster.Credentials{Pair: w.PKI.FrontProxyPair})
	for path, want := range map[string]int{
		"/apis/wardle.example.com/v1beta1": 200, "/api/v1/namespaces": 404, "/apis": 404, "/apis/apps/v1": 404, "/apis/apps/v1/deployments": 503, "/openapi/v3/apis/apps/v1": 404, "/api": 404, "/version": 404, "/fairlead/status": 404,
	} {
		r, err := ask.Do(t.Context(), aggregator, http.MethodGet, w.fronts[0].Endpoint.URL+path, http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}}, "")
		must.Do(t, err)
		check.Same(t, want, r.Code, "GET %s as the aggregator: %s", path, r.Body)
	}
}

// testControllers has a HorizontalPodAutoscaler scale by a metric of the adapter, and a namespace go.
func testControllers(t *testing.T, w *world) {
	must.Get(w.StartControllerManager(t.Context(), w.Endpoint(), "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=1s"))(t)
	w.autoscale(t)
	suite.Eventually(t, time.Minute, "scaled", func() (bool, string) {
		a := w.kubectl.Try(t, "", "-n", "scaled", "get", "deployment", "web", "-o=jsonpath={.spec.replicas}")
		return a.Out == "3", a.Out + a.Errs + w.kubectl.Try(t, "", "-n", "scaled", "describe", "hpa").Out
	})
	w.deleted(t, "scaled")
}

func (w *world) deleted(t *testing.T, namespace string) {
	t.Helper()
	w.kubectl.Try(t, "", "delete", "namespace", namespace, "--wait=false")
	suite.Eventually(t, time.Minute, "the namespace has gone", func() (bool, string) {
		a := w.kubectl.Try(t, "", "get", "namespace", namespace, "-o=jsonpath={.status}")
		return strings.Contains(a.Errs, "not found"), a.Out + a.Errs
	})
}

func testTop(t *testing.T, w *world) {
	suite.Eventually(t, time.Minute, "kubectl top nodes", func() (bool, string) {
		a := w.kubectl.Try(t, "", "top", "nodes")
		return a.Code == 0 && regexp.MustCompile(`(?m)^harbour +25[01]m`).MatchString(a.Out), a.Out + a.Errs
	})
}

// testGone ends servers behind Fairlead for good, and deletes an APIService.
func testGone(t *testing.T, w *world, adapter *cluster.Part) {
	must.Do(t, w.objects.Delete(t.Context(), alpha, metav1.DeleteOptions{})) // which Fairlead does not serve
	w.autoscale(t)
	w.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: waits}}")
	suite.Eventually(t, time.Minute, "scaled", func() (bool, string) {
		a := w.kubectl.Try(t, "", "-n", "scaled", "get", "hpa", "web", "-o=jsonpath={.status.conditions[?(@.type=='ScalingActive')].status}")
		return a.Out == "True", a.Out + a.Errs
	})
	adapter.Kill()
	suite.Eventually(t, time.Minute, "the HPA says why", func() (bool, string) {
		a := w.kubectl.Try(t, "", "-n", "scaled", "get", "hpa", "web", "-o=jsonpath={.status.conditions[?(@.type=='ScalingActive')].message}")
		return strings.Contains(a.Out, "external.metrics.k8s.io"), a.Out + a.Errs
	})
	t.Log(w.kubectl.Try(t, "", "-n", "scaled", "describe", "hpa", "web").Out)
	must.Do(t, adapter.Restart(t.Context()))
	for _, s := range w.samples {
		s.Kill()
	}
	w.kubectl.Try(t, "", "delete", "namespace", "waits", "--wait=false")
	suite.Eventually(t, time.Minute, "the namespace waits", func() (bool, string) {
		a := w.kubectl.Try(t, "", "get", "namespace", "waits", "-o=jsonpath={.status.conditions[?(@.status=='True')].message}")
		return strings.Contains(a.Out, "stale GroupVersion discovery: wardle.example.com/v1beta1"), a.Out + a.Errs
	})
	suite.Eventually(t, time.Minute, "the APIService says for whom", func() (bool, string) {
		a := w.kubectl.Try(t, "", "get", "apiservice", beta)
		return strings.Contains(a.Out, "False (FailedDiscoveryCheck)"), a.Out + a.Errs
	})
	if a := w.own(t, "status"); a.Code != 3 || !strings.Contains(a.Out, beta) || !strings.Contains(a.Out, "False") {
		t.Errorf("status: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
	for _, s := range w.samples {
		must.Do(t, s.Restart(t.Context()))
	}
	w.deleted(t, "waits")
	w.deleted(t, "scaled")
	must.Do(t, w.objects.Delete(t.Context(), beta, metav1.DeleteOptions{}))
	for name, c := range map[string]*http.Client{
		w.Endpoint().URL: w.admin, w.fronts[0].Endpoint.URL: suite.Client(t, w.fronts[0].Endpoint, cluster.Credentials{Token: w.token}),
	} {
		took := suite.Eventually(t, time.Minute, "it has left /openapi/v3 of "+name, func() (bool, string) {
			r, err := ask.Do(t.Context(), c, http.MethodGet, name+"/openapi/v3", nil, "")
			must.Do(t, err)
			return r.Code == http.StatusOK && !strings.Contains(r.Body, "wardle.example.com/v1beta1"), fmt.Sprintf("%d %.2000s", r.Code, r.Body)
		})
		t.Logf("it left %s after %s", name, took)
	}
}
