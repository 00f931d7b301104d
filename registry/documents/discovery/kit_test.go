package discovery

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

const aggregatedJSON = "application/json" + aggregatedParams

// stage is a Discovery in a scene.
type stage struct {
	*scene.Scene
	alone   bool // without a local apiserver
	d       *Discovery
	metrics *prometheus.Registry
}

func newStage(tb testing.TB) *stage {
	s := &stage{Scene: scene.New(tb)}
	s.Input.Options.ProtectedGroups = []string{"protected.example.com"}
	return s
}

// inBubble runs play on a new stage in a synctest bubble.
func inBubble(t *testing.T, play func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) { play(t, newStage(t)) })
}

func (s *stage) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// open runs the Discovery until the test ends.
func (s *stage) open(cfg Config) {
	s.Helper()
	s.make(cfg)
	s.Start(s.d.Run)
}

func (s *stage) make(cfg Config) {
	s.Helper()
	given := cfg.Config
	cfg.Config = s.Config()
	cfg.FetchOwn = given.FetchOwn
	if s.alone {
		cfg.FetchLocal = nil
	}
	if given.Fetch != nil {
		cfg.Fetch = given.Fetch
	}
	s.metrics = prometheus.NewRegistry()
	cfg.Metrics = s.metrics
	s.d = must.Get(New(cfg))(s)
	s.Built = s.d.sources.Touch
}

// report passes a probe's result to the table.
func (s *stage) report(name string, health registry.Health) {
	s.Helper()
	for _, e := range s.Table().Entries() {
		if e.Name == name {
			s.Build(registry.Report{Name: name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: health, Reason: registry.ReasonFailedDiscoveryCheck, Message: "no"})
			return
		}
	}
	s.Fatalf("no entry %s", name)
}

func (s *stage) get(path string, header http.Header) *httptest.ResponseRecorder {
	return s.Get(s.d, path, header)
}

// crdService is the APIService of a CRD.
func crdService(group, version string) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group}, Spec: apiregistrationv1.APIServiceSpec{
		Group: group, Version: version, GroupPriorityMinimum: crdGroupPriority, VersionPriority: crdVersionPriority,
	}}
}
