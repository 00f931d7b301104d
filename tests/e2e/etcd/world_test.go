//go:build e2e

package etcd

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	typed "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

type world struct{ bin string }

// site is an etcd with its Fairleads.
type site struct {
	*cluster.Cluster
	w     *world
	kv    *clientv3.Client
	doors []*door
}

// door is a Fairlead with clients of a user in system:masters.
type door struct {
	*cluster.Front
	client   *http.Client
	services typed.APIServiceInterface
}

// site starts an etcd and some Fairleads, by default without a kube-apiserver.
func (w *world) site(t *testing.T, doors int, cfg cluster.Config) *site {
	t.Helper()
	if cfg.APIServers == 0 {
		cfg.APIServers = -1
	}
	cfg.Dir = suite.Folder(t, "etcd")
	s := &site{Cluster: suite.Start(t, cfg), w: w}
	s.kv = must.Get(clientv3.New(clientv3.Config{Endpoints: s.EtcdURLs(), DialTimeout: 10 * time.Second}))(t)
	t.Cleanup(func() { _ = s.kv.Close() })
	for range doors {
		s.open(t, s.Registry())
	}
	return s
}

func (s *site) open(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	front := must.Get(s.StartFairlead(ctx, cluster.Fairlead{
		Path: s.w.bin, Name: fmt.Sprintf("fairlead-%d", len(s.doors)), Registry: registry, Args: append([]string{"--logging-format=json"}, args...),
	}))(t)
	d := &door{Front: front, client: suite.Client(t, front.Endpoint, s.Admin()), services: s.services(t, front.Endpoint)}
	s.doors = append(s.doors, d)
	return d
}

func (s *site) services(t *testing.T, e cluster.Endpoint) typed.APIServiceInterface {
	t.Helper()
	c := must.Get(aggregator.NewForConfig(e.RESTConfig(s.Admin())))(t)
	return c.ApiregistrationV1().APIServices()
}

// extension starts an extension server that trusts only the site's Fairleads.
func (s *site) extension(t *testing.T, groupVersions ...string) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: groupVersions, CA: s.PKI.Serving.CA, Objects: 3, RequestHeaderCA: s.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized,
	})
}

const urlAnnotation = "fairlead.dev/url"

// remote returns an APIService with an extension server's address. Its Service does not exist, but
// kube-aggregator's validation requires one with a caBundle.
func (s *site) remote(name string, at *extension.Server) *apiregistrationv1.APIService {
	version, group, _ := strings.Cut(name, ".")
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{urlAnnotation: at.URL()}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: 10, CABundle: s.PKI.Serving.CA.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "nowhere", Name: "none"},
		},
	}
}

// The APIService of most cases, and its path.
const (
	widgetsAPI = "v1.widgets.example.com"
	widgets    = "/apis/widgets.example.com/v1/widgets"
)

// ask sends a request. Without an answer, the status is 0.
func (d *door) ask(t *testing.T, method, path, body string) ask.Reply {
	t.Helper()
	reply, err := ask.Do(t.Context(), d.client, method, d.Endpoint.URL+path, nil, body)
	if err != nil {
		return ask.Reply{Body: err.Error()}
	}
	return reply
}

func (d *door) becomes(t *testing.T, path string, status int) {
	t.Helper()
	suite.Eventually(t, time.Minute, fmt.Sprintf("%s %s %d", d.Part.Name(), path, status), func() (bool, string) {
		res := d.ask(t, http.MethodGet, path, "")
		return res.Code == status, fmt.Sprintf("%d %.300s\n%s", res.Code, res.Body, d.Part.Tail())
	})
}

func (s *site) become(t *testing.T, path string, status int) {
	t.Helper()
	for _, d := range s.doors {
		d.becomes(t, path, status)
	}
}

func TestEtcd(t *testing.T) {
	w := &world{bin: suite.Build(t, t.TempDir())}
	t.Run("load", func(t *testing.T) { testLoad(t, w) }) // it measures, so the others start when it has ended
	suite.Cases[*world]{
		{"differential", testDifferential},
		{"shared", testShared},
		{"beside", testBeside},
		{"kubectl", testKubectl},
		{"leader", testLeader},
		{"stopped", testStopped},
		{"full", testFull},
		{"restart", testRestart},
	}.Beside(t, w)
}
