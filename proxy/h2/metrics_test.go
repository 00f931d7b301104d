package h2

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
)

func TestCounters(t *testing.T) {
	r := newRig(t)
	r.plan.Again = true
	p := r.client()
	n := &r.e.count
	for id := uint32(1); id <= 9; id += 2 {
		p.get(id)
	}
	b := r.backend(0)
	if n.conns[up].Load() != 1 || n.conns[down].Load() != 1 || n.streams.Load() != 5 {
		t.Errorf("%d, %d connections, %d streams", n.conns[up].Load(), n.conns[down].Load(), n.streams.Load())
	}
	p.rst(1, http2.ErrCodeCancel)
	b.rst(3, http2.ErrCodeInternal)
	b.headers(5, true, "x=no status")
	b.flush()
	p.headers(2*250+1, false, ":method=GET", ":scheme=https", ":path=/", "connection=close")
	p.flush()
	for _, want := range []resetCause{resetByClient, resetByBackend} {
		if got := n.resets[want].Load(); got != 1 {
			t.Errorf("%v: %d resets", want, got)
		}
	}
	if got := n.resets[resetProtocol].Load(); got != 2 {
		t.Errorf("protocol: %d resets", got)
	}
	b.respond(7, "7")
	b.headers(9, false, ":status=200")
	b.data(9, strings.Repeat("9", 50_000), false)
	b.data(9, strings.Repeat("9", 50_000), true) // more than the client's window: the rest waits
	if got := n.queued.Load(); got < 100_000-defaultWindow || got > 100_000 {
		t.Errorf("%d bytes buffered", got)
	}
	_ = p.fr.WriteGoAway(0, http2.ErrCodeNo, nil)
	for range budget.Burst + 1 {
		_ = p.fr.WritePing(false, [8]byte{})
	}
	p.flush()
	r.e.remove(p.c)
	if n.received[up].Load() != 1 || n.sent[up].Load() != 1 || n.floods.Load() != 1 {
		t.Errorf("GOAWAY: %d received, %d sent; floods %d", n.received[up].Load(), n.sent[up].Load(), n.floods.Load())
	}
	if n.conns[up].Load() != 0 || n.streams.Load() != 0 || n.queued.Load() != 0 || n.output.Load() != 0 {
		t.Errorf("left: %d connections, %d streams, %d and %d bytes", n.conns[up].Load(), n.streams.Load(), n.queued.Load(), n.output.Load())
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := New(Config{Metrics: reg, Shards: 2})
	s.shards[0].e.count.streams.Add(2)
	s.shards[1].e.count.streams.Add(3)
	s.shards[1].e.count.reset(resetByLane)
	want := `
# HELP fairlead_h2_streams Streams of clients that the frame lane has under way.
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
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "fairlead_h2_streams", "fairlead_h2_resets_total"); err != nil {
		t.Error(err)
	}
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
		t.Errorf("forwarded: %v, trailer %v", res.Header, res.Trailer)
	}
}
