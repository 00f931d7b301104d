package h2

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := New(Config{Metrics: reg, Shards: 2})
	s.shards[0].e.Count.Streams.Add(2)
	s.shards[1].e.Count.Streams.Add(3)
	s.shards[1].e.Count.Resets[4].Add(1)
	want := `
# HELP fairlead_h2_streams Streams of clients that the engine has under way.
# TYPE fairlead_h2_streams gauge
fairlead_h2_streams 5
# HELP fairlead_h2_resets_total Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, lane (deadline, drain, panic).
# TYPE fairlead_h2_resets_total counter
fairlead_h2_resets_total{cause="backend"} 0
fairlead_h2_resets_total{cause="client"} 0
fairlead_h2_resets_total{cause="lane"} 1
fairlead_h2_resets_total{cause="limit"} 0
fairlead_h2_resets_total{cause="protocol"} 0
`
	must.Do(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "fairlead_h2_streams", "fairlead_h2_resets_total"))
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 16 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestRemoveResponse(t *testing.T) { onDrivers(t, testRemoveResponse) }

func testRemoveResponse(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "Access-Control-Allow-Origin, X-T")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Kept", "1")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-T", "1")
	}), func(_ *Head, p *Plan) {
		p.RemoveResponse = func(name string) bool { return name == "access-control-allow-origin" }
	})
	res := s.do("GET", "/", nil)
	if s.read(res) != "body" || res.Header.Get("X-Kept") != "1" || res.Trailer.Get("X-T") != "1" {
		t.Errorf("got %v, trailer %v", res.Header, res.Trailer)
	}
	if res.Header["Access-Control-Allow-Origin"] != nil || res.Trailer["Access-Control-Allow-Origin"] != nil {
		t.Errorf("not removed: %v, trailer %v", res.Header, res.Trailer)
	}
}
