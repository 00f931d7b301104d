//go:build e2e

package behind

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// sample starts two of Kubernetes' sample extension servers, which need an etcd, in pods.
func (w *world) sample(t *testing.T) {
	t.Helper()
	etcd := must.Get(net.Listen("tcp", controlPlane+":2379"))(t)
	go relay.Accept(t, etcd, func(ctx context.Context, c net.Conn) { // ends with the test
		to, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(w.EtcdURLs()[0], "http://"))
		if err == nil {
			relay.Join(ctx, c, to, c)
		}
	})
	w.samples = w.extension(t, &cluster.Backend{
		Namespace: "wardle", Service: "api", CAFile: w.PKI.Serving.CertFile, Addresses: []string{"10.80.0.3", "10.80.0.4"},
		GroupVersions: []string{"wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"},
	}, "sample-apiserver", "--etcd-servers=http://"+controlPlane+":2379", "--etcd-prefix=/registry/wardle.example.com")
}

// adapter starts the test server of the custom-metrics library in pods.
func (w *world) adapter(t *testing.T) *cluster.Part {
	t.Helper()
	return w.extension(t, &cluster.Backend{
		Namespace: "custom-metrics", Service: "adapter", CAFile: w.PKI.Serving.CertFile, Addresses: []string{"10.80.0.5"},
		GroupVersions: []string{"custom.metrics.k8s.io/v1beta2", "external.metrics.k8s.io/v1beta1"},
	}, "test-adapter")[0]
}

// metrics starts metrics-server in pods. It scrapes the kubelets of the cluster.
func (w *world) metrics(t *testing.T) {
	t.Helper()
	w.extension(t, &cluster.Backend{
		Namespace: "kube-system", Service: "metrics-server", CAFile: w.PKI.Serving.CertFile, Addresses: []string{"10.80.0.6"}, GroupVersions: []string{"metrics.k8s.io/v1beta1"},
	}, "metrics-server", "--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
		"--metric-resolution=10s", "--kubelet-request-timeout=5s") // 10 s is the minimum
}

func (w *world) extension(t *testing.T, b *cluster.Backend, program string, more ...string) (parts []*cluster.Part) {
	t.Helper()
	_, args, err := w.ExtensionArgs(b)
	must.Do(t, err)
	for i, a := range args {
		if kubeconfig, ok := strings.CutPrefix(a, "--kubeconfig="); ok && program == "test-adapter" {
			args[i] = "--lister-kubeconfig=" + kubeconfig
		}
	}
	for _, address := range b.Addresses {
		ready := func(ctx context.Context) error { // nobody here reaches it, and metrics-server is ready only once it has scraped
			return exec.CommandContext(ctx, "ip", "netns", "exec", "pods", "curl", "-sfk", fmt.Sprintf("https://%s:%d/livez", address, b.Port)).Run()
		}
		name := program + address[len(address)-1:]
		pair := must.Get(w.PKI.Serving.Issue(name, cluster.Leaf{User: b.Service, Names: []string{b.Service + "." + b.Namespace + ".svc"}}))(t)
		own := []string{"--bind-address=" + address, "--tls-cert-file=" + pair.CertFile, "--tls-private-key-file=" + pair.KeyFile}
		parts = append(parts, must.Get(w.Run(t.Context(), cluster.Command{
			Name: name, Path: w.inPods(t, suite.Tool(t, program)), Args: slices.Concat(args, own, more), Ready: ready,
		}))(t))
	}
	must.Do(t, w.Register(t.Context(), *b))
	return parts
}

// allHealthy waits until each Fairlead finds both samples healthy.
func (w *world) allHealthy(t *testing.T) {
	t.Helper()
	for _, f := range w.fronts {
		suite.Eventually(t, 20*time.Second, "all are healthy", func() (bool, string) {
			r, err := ask.Do(t.Context(), suite.Client(t, f.Admin, cluster.Credentials{Token: w.token}), http.MethodGet, f.Admin.URL+"/status", nil, "")
			must.Do(t, err)
			var status answer.Status
			must.Do(t, json.Unmarshal([]byte(r.Body), &status))
			list := status.APIServices[slices.IndexFunc(status.APIServices, func(a answer.APIService) bool { return a.Name == beta })].Endpoints
			return len(list) == len(w.samples) && !slices.ContainsFunc(list, func(e answer.Endpoint) bool {
				return e.Health != "healthy" || e.ProbeError != ""
			}), fmt.Sprintf("%+v", list)
		})
	}
}
