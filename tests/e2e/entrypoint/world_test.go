//go:build e2e

package entrypoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const (
	port      = 8443        // of every Fairlead
	clusterIP = "10.96.0.1" // of the Service kubernetes
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// world is a cluster without endpoints of its own, and what its Fairleads need.
type world struct {
	*cluster.Cluster
	fairlead   string // executable
	kubeconfig string // of the shipped ServiceAccount
	core       kubernetes.Interface
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16", clusterIP+"/32")
	netns.Hide(t, "/run/secrets") // where a pod's credentials are
	dir := suite.Folder(t, "entrypoint")
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin"))}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--endpoint-reconciler-type=none", "--advertise-address=10.79.0.9"}})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	w.kubeconfig = must.Get(w.Account(t.Context(), w.Endpoint(), w.deploy(t), "entrypoint"))(t)
	return w
}

// deploy returns a folder with the shipped manifests, combined as in docs/operations.md.
func (w *world) deploy(t *testing.T) string {
	t.Helper()
	deploy := filepath.Join(w.Dir(), "deploy")
	must.Do(t, os.CopyFS(deploy, os.DirFS("../../../deploy")))
	must.Do(t, os.Mkdir(filepath.Join(deploy, "overlays", "entrypoint"), 0o700))
	suite.Put(t, filepath.Join(deploy, "overlays", "entrypoint", "kustomization.yaml"), "resources: [../control-plane]\ncomponents: [../../components/entrypoint]\n")
	return deploy
}

// start runs a Fairlead with the shipped ServiceAccount at an address.
func (w *world) start(t *testing.T, name, address string, args ...string) *cluster.Front {
	t.Helper()
	return must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Name: name, Address: address, Port: port,
		Args: append([]string{"--kubeconfig=" + w.kubeconfig, "--publish-kubernetes-endpoints", "--advertise-address=" + address}, args...),
	}))(t)
}

// endpoints returns the addresses in the EndpointSlices of default/kubernetes, in order.
func (w *world) endpoints(ctx context.Context) (all []string, err error) {
	list, err := w.core.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			all = append(all, net.JoinHostPort(e.Addresses[0], fmt.Sprint(*s.Ports[0].Port)))
		}
	}
	slices.Sort(all)
	return all, nil
}

// publishes waits until the Service has exactly these endpoints. The Endpoints object must agree.
func (w *world) publishes(t *testing.T, most time.Duration, addresses ...string) {
	t.Helper()
	took := suite.Eventually(t, most, fmt.Sprintf("published: %v", addresses), func() (bool, string) {
		got, err := w.endpoints(t.Context())
		return err == nil && slices.Equal(got, addresses), fmt.Sprint(got, err)
	})
	t.Logf("%v after %s", addresses, took)
	old := must.Get(w.core.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	var have []string
	for _, s := range old.Subsets {
		for _, a := range s.Addresses {
			have = append(have, net.JoinHostPort(a.IP, fmt.Sprint(s.Ports[0].Port)))
		}
	}
	if slices.Sort(have); !slices.Equal(have, addresses) {
		t.Errorf("Endpoints say %v, EndpointSlices %v", have, addresses)
	}
}

// serviceProxy acts as kube-proxy for one Service: each connection to the cluster address goes to
// one of the current endpoints. Like kube-proxy, it reads them directly from an apiserver.
func (w *world) serviceProxy(t *testing.T, clusterIP string) {
	t.Helper()
	relay.Accept(t, must.Get(net.Listen("tcp", net.JoinHostPort(clusterIP, "443")))(t), func(ctx context.Context, client net.Conn) {
		all, err := w.endpoints(ctx)
		if err != nil || len(all) == 0 {
			return
		}
		server, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", all[rand.IntN(len(all))])
		if err != nil {
			return
		}
		relay.Join(ctx, client, server, client)
	})
}

// podConfig is a pod's client configuration: environment variables, a token and a CA bundle at
// fixed places. The pod may read and create ConfigMaps.
func (w *world) podConfig(t *testing.T) *rest.Config {
	t.Helper()
	const folder = "/var/run/secrets/kubernetes.io/serviceaccount"
	k := kubectl.As(t, w.Endpoint(), w.Admin())
	k.Run(t, "create", "serviceaccount", "pod")
	k.Run(t, "create", "role", "pod", "--verb=get,create", "--resource=configmaps")
	k.Run(t, "create", "rolebinding", "pod", "--role=pod", "--serviceaccount=default:pod")
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.WriteFile(folder+"/ca.crt", must.Get(os.ReadFile(w.PKI.Serving.CertFile))(t), 0o600))
	must.Do(t, os.WriteFile(folder+"/token", []byte(strings.TrimSpace(k.Run(t, "create", "token", "pod"))), 0o600))
	t.Setenv("KUBERNETES_SERVICE_HOST", clusterIP)
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	return must.Get(rest.InClusterConfig())(t)
}
