//go:build e2e

package faults

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const (
	// most is how much later than directly a server may be served through Fairlead: kube-apiserver's own aggregator
	// needs a tenth of a second, and people notice nothing below a third.
	most     = 300 * time.Millisecond
	step     = 20 * time.Millisecond // the interval between requests
	patience = 30 * time.Second      // how long it may take until all are served
)

type server struct {
	part *cluster.Part
	e    cluster.Endpoint
	path string
}

// TestRecovery restarts real extension servers ten times each, alternately after SIGTERM and SIGKILL, and measures how
// much later Fairlead serves them than they answer directly.
func TestRecovery(t *testing.T) {
	w := newWorld(t) // the adapter always listens on port 8080 of all addresses
	t.Logf("commit %s", suite.Commit(t))
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead}))(t).Endpoint
	for _, tc := range []struct {
		program string
		backend cluster.Backend
		path    string
	}{
		{"sample-apiserver", cluster.Backend{
			Namespace: "wardle", Service: "api", GroupVersions: []string{"wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"},
		}, "/apis/wardle.example.com/v1beta1/flunders"},
		{"test-adapter", cluster.Backend{
			Namespace: "custom-metrics", Service: "adapter", GroupVersions: []string{"custom.metrics.k8s.io/v1beta2", "external.metrics.k8s.io/v1beta1"},
		}, "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/my-external-metric"},
	} {
		t.Run(tc.program, func(t *testing.T) {
			suite.Tool(t, tc.program) // built before the time limit starts
			part := must.Get(w.StartExtension(t.Context(), tc.program, &tc.backend))(t)
			s := server{part, cluster.Endpoint{URL: fmt.Sprintf("https://127.0.0.1:%d", tc.backend.Port), CAFile: w.PKI.Serving.CertFile}, tc.path}
			var late []string
			for i, down := range []time.Duration{2, 5, 10, 2, 5, 10, 2, 5, 10, 2} {
				if got := w.restart(t, front, s, down*time.Second, i%2 == 0); got > most {
					late = append(late, fmt.Sprint(got.Round(time.Millisecond)))
				}
			}
			check.Same(t, 0, len(late), "%d of 10 restarts: served later than %s after it would answer directly: %s", len(late), most, late)
		})
	}
}

// restart stops s for a while. It returns the time from the first direct answer to the first through Fairlead.
func (w *world) restart(t *testing.T, front cluster.Endpoint, s server, down time.Duration, farewell bool) time.Duration {
	t.Helper()
	vouched := cluster.Credentials{Pair: w.PKI.FrontProxyPair}
	direct := poll(t, suite.Client(t, s.e, vouched), s.e.URL+s.path, http.Header{"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}})
	through := poll(t, suite.Client(t, front, w.Admin()), front.URL+s.path, nil)
	beside := poll(t, suite.Client(t, w.Endpoint(), w.Admin()), w.Endpoint().URL+s.path, nil)
	all := []*volley.Load{direct, through, beside}
	await(t, all, time.Now())
	if farewell {
		must.Do(t, s.part.Signal(syscall.SIGTERM))
		<-s.part.Done()
	} else {
		s.part.Kill()
	}
	<-time.After(down)
	begun := time.Now()
	must.Do(t, s.part.Restart(t.Context()))
	await(t, all, begun)
	<-time.After(time.Second) // in which no request may fail again
	for _, p := range all {
		p.Stop()
	}
	at, _ := served(direct, begun)
	ours, relapses := served(through, begun)
	theirs, _ := served(beside, begun)
	t.Logf("down %s: answers directly %s after its start, through Fairlead %s later, through the aggregator %s later",
		down, at.Sub(begun).Round(time.Millisecond), ours.Sub(at).Round(time.Millisecond), theirs.Sub(at).Round(time.Millisecond))
	check.Same(t, 0, relapses, "down %s: %d requests failed after the first answer", down, relapses)
	return ours.Sub(at)
}

// poll starts to request a URL.
func poll(t *testing.T, c *http.Client, url string, header http.Header) *volley.Load {
	t.Helper()
	l := &volley.Load{Every: step, Clients: []*http.Client{c}, Header: header, Make: func(int) (string, string, string) { return http.MethodGet, url, "" }}
	return l.Start(t)
}

// served returns when the first 200 after begun came, and how many later requests were not answered with 200.
func served(l *volley.Load, begun time.Time) (first time.Time, relapses int) {
	for _, s := range l.Ended() {
		at := s.Began.Add(s.Took)
		switch {
		case at.Before(begun):
		case s.Code == http.StatusOK && first.IsZero():
			first = at
		case s.Code != http.StatusOK && !first.IsZero() && s.Began.After(first):
			relapses++
		}
	}
	return first, relapses
}

// await waits until each load has been served since a moment.
func await(t *testing.T, all []*volley.Load, since time.Time) {
	t.Helper()
	for i, l := range all {
		suite.Eventually(t, patience, "served", func() (bool, string) {
			at, _ := served(l, since)
			return !at.IsZero(), []string{"directly", "through Fairlead", "through the aggregator"}[i]
		})
	}
}
