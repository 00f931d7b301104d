package proxy

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

func tableOf(prev *registry.Table, groups ...string) *registry.Table {
	in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{}, Complete: true}
	for _, g := range groups {
		in.APIServices["v1."+g] = &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1." + g}, Spec: apiregistrationv1.APIServiceSpec{Group: g, Version: "v1"}}
	}
	return registry.Build(in, prev)
}

// Requests under way are counted by kind: a session is no watch, and never makes their number negative.
func TestActive(t *testing.T) {
	for _, tt := range []struct {
		requests, longRunning, sessions int64
		want                            string
		underWay                        int
	}{
		{0, 0, 0, "request 0, session 0, watch 0", 0}, {2, 3, 1, "request 2, session 1, watch 2", 4},
		{2, 0, 1, "request 2, session 1, watch 0", 1}, {2, 0, 0, "request 2, session 0, watch 0", 2},
	} {
		p, reg := &Proxy{}, prometheus.NewRegistry()
		reg.MustRegister(p.active())
		p.underWay.requests.Store(tt.requests)
		p.underWay.longRunning.Store(tt.longRunning)
		p.sessions.open.Store(tt.sessions)
		var got []string
		for _, m := range must.Get(reg.Gather())(t)[0].Metric {
			got = append(got, fmt.Sprint(m.Label[0].GetValue(), " ", m.Gauge.GetValue()))
		}
		check.Same(t, tt.want, strings.Join(got, ", "), "active")
		check.Same(t, tt.underWay, p.UnderWay(), "under way")
	}
}

// aMinute passes in a bubble: the series are looked at.
func aMinute() {
	<-time.After(time.Minute)
	synctest.Wait()
}

// Series begin and end with their APIService, also if a request ends later, and if the APIService
// existed only between two scans of the table.
func TestSeriesEndWithTheAPIService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[registry.Table]
		now.Store(tableOf(nil, "stays"))
		m := newMetrics(prometheus.NewRegistry(), scene.TableFunc(now.Load))
		observe := func(e *registry.Entry, verb string) {
			m.observe(&Decision{Entry: e, Request: Request{Verb: verb}}, 200, time.Second)
		}
		series := func(want int, when string) {
			t.Helper()
			check.Same(t, [2]int{want, want}, [2]int{testutil.CollectAndCount(m.total), testutil.CollectAndCount(m.duration)}, "series %s", when)
		}
		observe(now.Load().Entries()[0], "get")
		second := tableOf(now.Load(), "stays", "goes") // no scan sees it
		now.Store(second)
		goes := second.Entries()[0]
		if goes.GroupVersion.Group != "goes" {
			goes = second.Entries()[1]
		}
		observe(goes, "get")
		series(2, "of each APIService")
		now.Store(tableOf(second, "stays"))
		stop := must.Run(t, m.prune)
		synctest.Wait()
		observe(goes, "watch")
		observe(goes, "get")
		aMinute()
		series(1, "of the APIService that stays, a minute later")

		// The entry of a request was replaced before its APIService was deleted.
		third := tableOf(now.Load(), "stays", "replaced")
		m.seen.Store(third.Entries()[0], struct{}{})
		m.seen.Store(third.Entries()[1], struct{}{})
		m.total.WithLabelValues("get", "replaced", "v1", "200").Inc()
		for _, table := range []*registry.Table{tableOf(nil, "stays", "replaced"), tableOf(nil, "stays")} {
			now.Store(table)
			stop()
			stop = must.Run(t, m.prune)
			synctest.Wait()
		}
		series(1, "after an entry was replaced and deleted")
		// A request that was counted after the scan that saw its APIService go.
		m.seen.Store(goes, struct{}{})
		m.total.WithLabelValues("get", "goes", "v1", "200").Inc()
		aMinute()
		series(1, "a minute after a late request")
	})
}

// A request may end while prune forgets its APIService. One that is made anew must not count into forgotten series.
func TestSeriesOfASuccessor(t *testing.T) {
	first := tableOf(nil, "one")
	none := tableOf(first)
	second := tableOf(none, "one")
	gone, next := first.Entries()[0], second.Entries()[0]
	now := func() *registry.Table { return first }
	m := newMetrics(prometheus.NewRegistry(), scene.TableFunc(func() *registry.Table { return now() }))
	count := func(e *registry.Entry) {
		m.observe(&Decision{Entry: e, Request: Request{Verb: "get"}}, 200, time.Second)
	}
	count(gone)
	now = func() *registry.Table { // the request has found its series
		of, _ := m.seen.Load(gone)
		m.move(gone, nil, of)
		return none
	}
	count(gone)
	now = func() *registry.Table { return second }
	of, _ := m.seen.Load(gone)
	m.move(gone, next, of) // as prune does within a minute
	count(next)
	check.Same(t, 1, testutil.CollectAndCount(m.total), "series of the APIService that was made anew")
}

// One that is made anew before prune has forgotten the one before counts on.
func TestSeriesOfAnEarlySuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := tableOf(nil, "one")
		none := tableOf(first)
		var now, once atomic.Pointer[registry.Table]
		now.Store(first)
		table := func() *registry.Table { return cmp.Or(once.Swap(nil), now.Load()) }
		m := newMetrics(prometheus.NewRegistry(), scene.TableFunc(table))
		count := func() {
			m.observe(&Decision{Entry: now.Load().Entries()[0], Request: Request{Verb: "get"}}, 200, time.Second)
		}
		count()
		must.Run(t, m.prune)
		synctest.Wait()
		now.Store(tableOf(none, "one"))
		count()
		once.Store(none) // what prune sees next
		aMinute()
		count()
		check.Same(t, 3, testutil.ToFloat64(m.total.WithLabelValues("get", "one", "v1", "200")), "requests")
	})
}

// A further backend's requests are counted with its APIService's, which go on when it is gone.
func TestSeriesOutliveAFurtherBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scene.New(t)
		s.Claim("x/v1", "own", 100, 10)
		s.Route("v1.x", "more")
		m := newMetrics(prometheus.NewRegistry(), s)
		must.Run(t, m.prune)
		count := func() {
			for _, e := range s.Table().Servers() {
				m.observe(&Decision{Entry: e, Request: Request{Verb: "get"}}, 500, time.Second)
			}
		}
		total := m.total.WithLabelValues("get", "x", "v1", "500")
		count()
		aMinute()
		count()
		check.Same(t, uint64(2), (&Proxy{metrics: m}).Failed(s.Table().Servers()[1]), "its own failures, a minute later")
		s.Route("v1.x")
		aMinute()
		count()
		check.Same(t, []float64{5, 5}, []float64{testutil.ToFloat64(total), testutil.ToFloat64(m.total.WithLabelValues("get", "x", "v1", "500"))}, "requests, once it is gone")
	})
}

// Counting a request allocates nothing, however many statuses a backend has returned, and every request is counted; as
// failed if Fairlead or the backend answered with 5xx.
func TestObserve(t *testing.T) {
	reg := prometheus.NewRegistry()
	table := tableOf(nil, "one")
	m := newMetrics(reg, scene.TableFunc(func() *registry.Table { return table }))
	d := &Decision{Entry: table.Entries()[0], Request: Request{Verb: "get"}}
	for code := 200; code < 600; code++ {
		m.observe(d, code, time.Second)
		m.observe(d, code, time.Second)
	}
	long := &Decision{Entry: d.Entry, Request: Request{Verb: "get"}, LongRunning: true}
	m.observe(long, 200, time.Hour)
	for _, verb := range []string{"no verb", "connect", "GET", "\x1b", ""} {
		m.observe(&Decision{Request: Request{Verb: verb}}, 7, time.Second)
	}
	const registered = 58 // from 200, and four classes, and 499
	check.Same(t, [2]int{registered + 6, registered + 6}, [2]int{testutil.CollectAndCount(m.total), testutil.CollectAndCount(m.duration)}, "series")
	for code, want := range map[string]float64{"200": 3, "499": 2, "511": 2, "2xx": 2 * 90, "4xx": 2 * 70, "5xx": 2 * 89} {
		check.Same(t, want, testutil.ToFloat64(m.total.WithLabelValues("get", "one", "v1", code)), "%s", code)
	}
	p := &Proxy{metrics: m}
	check.Same(t, [2]uint64{200, 0}, [2]uint64{p.Failed(d.Entry), p.Failed(&registry.Entry{})}, "failed requests, and another entry's")
	check.Same(t, 5, testutil.ToFloat64(m.total.WithLabelValues("other", "other", "", "other")), "requests counted without an entry")
	check.Same(t, 0, testing.AllocsPerRun(100, func() { m.observe(d, 200, time.Second) }), "allocations")
}

// Health learns the latency of each endpoint over both protocols, from completed requests that are not long-running.
func TestAnswersAreObserved(t *testing.T) {
	observed := make(chan string, 10)
	w := newWorld(t, worldConfig{
		remote: func(_ http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/cut") {
				panic(http.ErrAbortHandler)
			}
		},
		pools: backend.Config{Observe: func(apiService, address string, took time.Duration) {
			observed <- fmt.Sprint(apiService, " ", address, " ", took > 0)
		}},
	})
	everyWay(t, func(t *testing.T, proto string) {
		for _, target := range []string{remoteGV + "/widgets?watch=true", remoteGV + "/widgets/cut", "/api/v1/pods", remoteGV + "/widgets"} { // apiservers are not compared
			w.get(t, proto, target)
			w.settled(t)
		}
		check.Same(t, "v1.remote.example.com "+w.remote.Listener.Addr().String()+" true", <-observed, "observed")
		check.Same(t, 0, len(observed), "further requests observed")
	})
}

// A response that its backend has cut is no success, whatever its head says. A watch ends so with its server.
func TestCutResponses(t *testing.T) {
	cut := make(chan struct{})
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-cut
		panic(http.ErrAbortHandler)
	}}, func(t *testing.T, w *world) {
		counted := func(verb, code string) float64 {
			return testutil.ToFloat64(w.proxy.metrics.total.WithLabelValues(verb, "remote.example.com", "v1", code))
		}
		for i, proto := range []string{"http/1.1", "h2"} {
			for _, target := range []string{"/widgets/one", "/widgets?watch=true"} {
				res := must.Get(w.httpClient(t, proto, nil).Do(w.as(t, "bob", "GET", remoteGV+target, nil)))(t)
				cut <- struct{}{}
				_, _ = io.Copy(io.Discard, res.Body) // it may be cut for the client, too
				_ = res.Body.Close()
			}
			want := [3]float64{0, float64(i + 1), float64(i + 1)}
			must.Soon(t, 10*time.Second, "a failure and a watch over "+proto, func() bool {
				return [3]float64{counted("get", "200"), counted("get", "502"), counted("watch", "200")} == want
			})
		}
	})
}

// settled waits until no request is under way: the engine counts a request after its last byte is sent.
func (w *world) settled(t *testing.T) {
	t.Helper()
	must.Soon(t, 10*time.Second, "no request is under way", func() bool { return w.proxy.UnderWay() == 0 })
}
