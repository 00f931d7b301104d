//go:build e2e

package rotation

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// lanes are the protocols of all cases (--http2).
func lanes() []string { return []string{"h2", "http1"} }

func TestRotation(t *testing.T) {
	w := newWorld(t)
	for _, lane := range lanes() {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			rotateAll(t, w, lane)
		})
	}
}

// stage is one lane's Fairlead, with the load's backends.
type stage struct {
	*front
	*load

	steady, inline, overlap, configmap *remote
}

func rotateAll(t *testing.T, w *world, lane string) {
	s := &stage{
		steady:    startRemote(t, w, lane, "steady", nil),
		inline:    startRemote(t, w, lane, "inline", nil),
		overlap:   startRemote(t, w, lane, "overlap", map[string]string{"ca-rotation-overlap": "12s"}),
		configmap: startRemote(t, w, lane, "configmap", caFrom(lane, "configmap")),
	}
	s.front = startFront(t, w, lane)
	local := "/api/v1/namespaces/default/configmaps"
	targets := []target{{name: "local", get: local + "/" + beat, watch: local + "?watch=1&timeoutSeconds=3600&fieldSelector=metadata.name%3D" + beat}}
	for _, r := range []*remote{s.steady, s.inline, s.overlap, s.configmap} {
		targets = append(targets, r.target())
		s.available(t, r.target())
	}
	emitEvents(t, w, s.steady, s.inline, s.overlap, s.configmap)
	s.load = startLoad(t, s.front, targets, [3]identity{masters(s.clients.first), gateway(s.proxies.first), token()})
	t.Run("under load", func(t *testing.T) {
		t.Parallel()
		suite.Cases[*stage]{
			{"serving pair", rotateServing},
			{"client CA", rotateClientCA},
			{"request-header CA", rotateRequestHeaderCA},
			{"proxy client pair", rotateProxyPair},
			{"caBundle, old then both then new", rotateInline},
			{"caBundle first, backend later", rotateBundleFirst},
			{"ConfigMap bundle", rotateConfigMap},
		}.Run(t, s)
	})
	// The other cases break things, so they have their own backends and identities, and run in
	// parallel with the load.
	suite.Cases[*stage]{
		{"a client certificate of a removed CA", removedClientCA},
		{"a front proxy of a removed CA", removedProxyCA},
		{"an expired client certificate", expiredLeaf},
		{"an expired client chain", expiredChain},
		{"no overlap by flag", noOverlapFlag},
		{"no overlap by annotation", noOverlapAnnotation},
		{"a CA dropped from a bundle that keeps others", droppedCA},
		{"an overlap that ends", overlapEnds},
		{"an expired backend certificate", expiredBackend},
		{"backend first, then caBundle", backendFirst},
		{"backend first, then ConfigMap", backendFirstConfigMap},
		{"lint", lintCluster},
	}.Beside(t, s)
}

func (f *front) available(t *testing.T, tg target) {
	t.Helper()
	c := f.client(user(f.admin), true)
	defer c.close()
	suite.Eventually(t, 30*time.Second, tg.name+" is available", func() (bool, string) {
		_, err := c.get(t.Context(), tg.get)
		return err == nil, fmt.Sprint(err)
	})
}
