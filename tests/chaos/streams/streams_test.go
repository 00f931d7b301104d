//go:build e2e

package streams

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
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

// TestFewStreams uses backends that allow 1, 5 and 20 streams per connection. h2load keeps all its streams busy.
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

// backend serves a group-version with so many streams per connection, and returns the path of its objects.
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

type load struct {
	connections, streams, requests int
	body                           string // file of a POST's body; empty: GET
}

func (l load) String() string {
	method := "GET"
	if l.body != "" {
		method = "POST"
	}
	return fmt.Sprintf("%s %d×%d", method, l.connections, l.streams)
}

// side is one of the two ways to the backend, with its results.
type side struct {
	name, url     string
	lost          int             // requests without an answer of 2xx
	took, slowest []time.Duration // of whole runs, and of their requests
}

// report has the time of the whole run, the answers of 2xx, and the time of the slowest request.
var report = regexp.MustCompile(`(?s)finished in (\S+),.*status codes: (\d+) 2xx.*time for request: +\S+ +(\S+) `)

func (s *side) run(t *testing.T, l load, token string) {
	t.Helper()
	// Longer than the minute that Fairlead and kube-apiserver give a request, so that a request that hangs is counted.
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := []string{
		"-n", strconv.Itoa(l.requests), "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams),
		"-H", "Authorization: Bearer " + token,
	}
	if l.body != "" {
		args = append(args, "-d", l.body, "-H", "Content-Type: application/json")
	}
	out, err := exec.CommandContext(ctx, "h2load", append(args, s.url)...).CombinedOutput()
	m := report.FindStringSubmatch(string(out))
	must.Be(t, err == nil && m != nil, "h2load %s: %v\n%s", l, err, out)
	s.took = append(s.took, must.Get(time.ParseDuration(m[1]))(t))
	s.slowest = append(s.slowest, must.Get(time.ParseDuration(m[3]))(t))
	if lost := l.requests - must.Get(strconv.Atoi(m[2]))(t); lost > 0 {
		s.lost += lost
		t.Logf("%d of %d requests through %s lost:\n%s", lost, l.requests, s.name, out)
	}
}

// compare runs l both ways in turns, and alternates which way is first.
func (w *world) compare(t *testing.T, l load, path string) {
	if l.body == "" {
		path += "/widget-000"
	}
	ours := &side{name: "Fairlead", url: w.front.Endpoint.URL + path}
	theirs := &side{name: "aggregator", url: w.Endpoint().URL + path}
	order := []*side{ours, theirs}
	for range runs {
		for _, s := range order {
			s.run(t, l, w.StaticToken("admin").Token)
		}
		slices.Reverse(order)
	}
	for _, s := range order {
		t.Logf("%-10s %d of %d lost; a run took %s, its slowest request %s", s.name, s.lost, runs*l.requests, median(s.took), median(s.slowest))
	}
	if ours.lost > 0 || median(ours.took) > median(theirs.took) || median(ours.slowest) > median(theirs.slowest) {
		t.Error("Fairlead loses requests, or a run or its slowest request takes longer than through the aggregator")
	}
}

// median returns the mean of the two values in the middle.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return ((all[(runs-1)/2] + all[runs/2]) / 2).Round(time.Millisecond)
}
