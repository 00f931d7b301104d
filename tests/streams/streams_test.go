//go:build e2e

package streams

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

const runs = 10

type world struct {
	*cluster.Cluster
	front *cluster.Front
	ca    *pki.CA
	caPEM string // its file
	body  string // file of the POSTs' body
}

// TestFewStreams uses backends that allow 1, 5 and 20 streams per connection. h2load keeps all its
// streams busy.
func TestFewStreams(t *testing.T) {
	w := newWorld(t)
	for _, limit := range []uint32{1, 5, 20} {
		t.Run(fmt.Sprintf("%d streams a connection", limit), func(t *testing.T) {
			path := w.backend(t, limit)
			for _, l := range []load{
				{connections: 4, streams: 95, requests: 2000},
				{connections: 4, streams: 50, requests: 2000},
				{connections: 10, streams: 100, requests: 4000},
			} {
				for _, l.body = range []string{"", w.body} {
					t.Run(l.String(), func(t *testing.T) { w.compare(t, l, path) })
				}
			}
		})
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	dir := suite.Folder(t, "streams")
	w := &world{Cluster: suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--advertise-address=10.79.0.1"}}), ca: pki.NewCA("extension-ca"), body: filepath.Join(dir, "body.json")}
	t.Logf("commit %s", suite.Commit(t))
	must.Do(t, os.WriteFile(w.body, []byte(`{"metadata":{"name":"posted"},"spec":{"payload":"x"}}`), 0o600))
	var err error
	w.caPEM, _, err = w.ca.WriteFiles(dir, "extension-ca")
	must.Do(t, err)
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, filepath.Join(dir, "bin"))}))(t)
	return w
}

// backend serves a group-version with so many streams per connection, and returns the path of its
// objects.
func (w *world) backend(t *testing.T, limit uint32) string {
	t.Helper()
	name := fmt.Sprintf("streams%d", limit)
	gv := name + ".example.com/v1"
	s := extension.Start(t, extension.Config{
		GroupVersions: []string{gv}, CA: w.ca, Names: []string{name + ".streams.svc"}, NoHTTP1: true, MaxStreams: limit, Record: -1,
		RequestHeaderCA: suite.Pool(t, w.PKI.FrontProxy.CertFile), RejectWith: http.StatusUnauthorized, Wrap: accept,
	})
	// One user has a thousand requests in flight: only streams may be scarce, not places.
	places := map[string]string{"fairlead.dev/max-inflight": "2000"}
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "streams", Service: name, Port: s.Port(), CAFile: w.caPEM, GroupVersions: []string{gv}, Annotations: places,
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, e := range []cluster.Endpoint{w.Endpoint(), w.front.Endpoint} {
		must.Do(t, w.WaitAvailable(ctx, e, gv))
	}
	return "/apis/" + gv + "/namespaces/default/widgets"
}

// accept answers a POST with its body and stores nothing: the runs would fill the store.
func accept(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(rw, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, 1<<20))
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		_, _ = rw.Write(body) // the client counts the answers
	})
}

// side is one of the two ways to the backend, with its results.
type side struct {
	name          string
	url           string
	lost          int
	took, slowest []time.Duration
}

// compare runs l both ways in turns, and alternates which way is first.
func (w *world) compare(t *testing.T, l load, path string) {
	if l.body == "" {
		path += "/widget-000"
	}
	ours := &side{name: "Fairlead", url: w.front.Endpoint.URL + path}
	theirs := &side{name: "aggregator", url: w.Endpoint().URL + path}
	order := []*side{ours, theirs}
	token := w.StaticToken("admin").Token
	for range runs {
		for _, s := range order {
			f := l.run(t, s.url, token)
			if f.lost > 0 && s.lost == 0 && s == ours {
				t.Errorf("%d of %d requests through %s lost:\n%s", f.lost, l.requests, s.name, f.report)
			}
			s.lost += f.lost
			s.took, s.slowest = append(s.took, f.took), append(s.slowest, f.slowest)
		}
		slices.Reverse(order)
	}
	for _, s := range []*side{ours, theirs} {
		slices.Sort(s.took)
		slices.Sort(s.slowest)
		t.Logf("%-10s %d of %d lost; a run took %s (%s to %s), its slowest request %s (%s to %s)", s.name, s.lost, runs*l.requests,
			round(median(s.took)), round(s.took[0]), round(s.took[runs-1]), round(median(s.slowest)), round(s.slowest[0]), round(s.slowest[runs-1]))
	}
	if a, b := median(ours.took), median(theirs.took); a > b {
		t.Errorf("a run through Fairlead takes %s, through the aggregator %s", round(a), round(b))
	}
	if a, b := median(ours.slowest), median(theirs.slowest); a > b {
		t.Errorf("the slowest request of a run through Fairlead takes %s, through the aggregator %s", round(a), round(b))
	}
}

// median returns the mean of the two values in the middle.
func median(sorted []time.Duration) time.Duration { return (sorted[(runs-1)/2] + sorted[runs/2]) / 2 }

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
