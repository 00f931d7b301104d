//go:build e2e

package routes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// TestStandby kills a server that has a standby, under load, and brings it back; at last it first
// comes back for a moment again and again.
func TestStandby(t *testing.T) {
	w := newWorld(t)
	own, standby := w.widgets(t, "own", widgets), w.widgets(t, "standby")
	w.routes(t, widgets, w.route(t, standby.backend, "standby: true"))
	must.Do(t, w.WaitAvailable(t.Context(), w.front.Endpoint, widgets))
	suite.Eventually(t, patience, "the standby is looked after", func() (bool, string) { return standby.Accepted() > 0, "" })

	// A POST takes so long that some are being answered at any time.
	slow := extension.Fault{Kind: extension.Slow, Method: http.MethodPost, Delay: 100 * time.Millisecond}
	must.Do(t, own.Set(slow))
	must.Do(t, standby.Set(slow))
	own.Forget()
	standby.Forget()
	path := w.front.Endpoint.URL + "/apis/" + widgets + "/namespaces/default/widgets"
	load := (&volley.Load{Every: 20 * time.Millisecond, Clients: []*http.Client{w.admin}, Make: func(i int) (method, url, body string) {
		if i%2 == 0 {
			return http.MethodPost, fmt.Sprintf("%s?number=%d", path, i), fmt.Sprintf(`{"apiVersion":%q,"kind":"Widget","metadata":{"name":"w-%d"}}`, widgets, i)
		}
		return http.MethodGet, fmt.Sprintf("%s/widget-001?number=%d", path, i), ""
	}}).Start(t)
	var rounds []round
	dead := extension.Fault{Kind: extension.Dead}
	for _, flaps := range []int{0, 0, 4} { // how often it comes back for a second only
		suite.Pause(t, 2*time.Second)
		r := round{killed: time.Now()}
		must.Do(t, own.Set(dead))
		for range flaps {
			suite.Pause(t, time.Second)
			must.Do(t, own.Set(slow))
			suite.Pause(t, time.Second)
			must.Do(t, own.Set(dead))
		}
		suite.Pause(t, 5*time.Second)
		r.back = time.Now()
		must.Do(t, own.Set(slow))
		r.took = suite.Eventually(t, patience, "requests go back", func() (bool, string) { return len(own.numbered(r.back, time.Now())) > 0, "" })
		suite.Pause(t, 3*time.Second)
		r.ended = time.Now()
		rounds = append(rounds, r)
	}
	shots := load.Stop()
	most := 0
	for i, r := range rounds {
		most += r.judge(t, i, shots, own, standby)
	}
	volley.Judge(t, shots, most, (*volley.Shot).Failed) // none but those of the kills
	once(t, shots, own, standby)
}

// round is one death and one return.
type round struct {
	killed, back, ended time.Time
	took                time.Duration // until the first request went back
}

// judge says how long nobody answered, who got requests after the return, and how many failed.
func (r *round) judge(t *testing.T, i int, shots []volley.Shot, own, standby widget) (failed int) {
	t.Helper()
	var outage time.Duration
	for i := range shots {
		s := &shots[i]
		switch late := s.Began.Sub(r.killed); {
		case !s.Failed() || s.Began.Add(s.Took).Before(r.killed) || s.Began.After(r.ended):
		case late > time.Second:
			t.Errorf("%s after the kill: %s", late, s)
		default:
			failed++
			outage = max(outage, late)
		}
	}
	check.Same(t, 0, len(own.numbered(r.killed.Add(time.Second), r.back)), "requests that went back before it was back for good")
	ours, theirs := own.numbered(r.back, r.ended), standby.numbered(r.back, r.ended)
	must.Be(t, len(ours) != 0 && len(theirs) != 0, "%d requests arrived after the return, %d of them at the standby", len(ours)+len(theirs), len(theirs))
	if late := theirs[len(theirs)-1].Time.Sub(ours[0].Time); late > 100*time.Millisecond { // what was on its way
		t.Errorf("requests still arrived at the standby %s after the first went back", late)
	}
	t.Logf("kill %d: %d requests failed, the last of them began %s after it; requests went back %s after the return", i, failed, outage.Round(time.Millisecond), r.took.Round(time.Millisecond))
	return failed
}

// once checks that no POST arrived twice, and each that was answered well arrived.
func once(t *testing.T, shots []volley.Shot, servers ...widget) {
	t.Helper()
	times := map[string]int{}
	for _, s := range servers {
		for _, r := range s.numbered(time.Time{}, time.Now()) {
			if r.Method == http.MethodPost {
				times[r.Target]++
			}
		}
	}
	posts := 0
	for i := range shots {
		s := &shots[i]
		if s.Method != http.MethodPost {
			continue
		}
		posts++
		if n := times[s.Target]; n > 1 || n == 0 && !s.Failed() {
			t.Errorf("arrived %d times: %s", n, s)
		}
	}
	t.Logf("%d POSTs, %d arrived", posts, len(times))
}

// widget is a server of widgets with a Service.
type widget struct {
	*extension.Server
	backend *cluster.Backend
}

func (w *world) widgets(t *testing.T, name string, groupVersions ...string) widget {
	t.Helper()
	s := extension.Start(t, extension.Config{
		GroupVersions: []string{widgets}, CA: w.PKI.Serving.CA, Names: []string{name + ".widgets.svc"}, Record: 1 << 14,
		RequestHeaderCA: suite.Pool(t, w.PKI.FrontProxy.CertFile), RejectWith: http.StatusUnauthorized,
	})
	b := &cluster.Backend{Namespace: "widgets", Service: name, Port: s.Port(), CAFile: w.PKI.Serving.CertFile, GroupVersions: groupVersions}
	must.Do(t, w.Register(t.Context(), *b))
	return widget{s, b}
}

// numbered returns the load's requests that arrived between two moments.
func (w widget) numbered(from, to time.Time) []extension.Request {
	return slices.DeleteFunc(w.Requests(), func(r extension.Request) bool {
		return !strings.Contains(r.Target, "number=") || r.Time.Before(from) || r.Time.After(to)
	})
}
