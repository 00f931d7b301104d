package h2

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// metrics returns metrics that add up the counters of all shards at scrape time: working shards
// share nothing.
func metrics(shards []*shard) (all []prometheus.Collector) {
	type labels = prometheus.Labels
	sum := func(of func(n *engine.Counters) *atomic.Int64) func() float64 {
		return func() float64 {
			sum := int64(0)
			for _, sh := range shards {
				sum += of(&sh.e.Count).Load()
			}
			return float64(sum)
		}
	}
	gauge := func(name, help string, l labels, of func(n *engine.Counters) *atomic.Int64) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fairlead_h2_" + name, Help: help, ConstLabels: l}, sum(of)))
	}
	counter := func(name, help string, l labels, of func(n *engine.Counters) *atomic.Int64) {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "fairlead_h2_" + name, Help: help, ConstLabels: l}, sum(of)))
	}
	for side, label := range [...]string{"client", "backend"} {
		gauge("connections", "HTTP/2 connections by side: client, backend.", labels{"side": label},
			func(n *engine.Counters) *atomic.Int64 { return &n.Conns[side] })
		const help = "GOAWAY frames by side of the connection (client, backend) and direction (sent, received)."
		sent, received := labels{"side": label, "direction": "sent"}, labels{"side": label, "direction": "received"}
		counter("goaways_total", help, sent, func(n *engine.Counters) *atomic.Int64 { return &n.Sent[side] })
		counter("goaways_total", help, received, func(n *engine.Counters) *atomic.Int64 { return &n.Received[side] })
	}
	for cause, label := range [...]string{"client", "backend", "limit", "protocol", "lane"} {
		const help = "Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, lane (deadline, drain, panic)."
		counter("resets_total", help, labels{"cause": label}, func(n *engine.Counters) *atomic.Int64 { return &n.Resets[cause] })
	}
	gauge("streams", "Streams of clients that the engine has under way.", nil, func(n *engine.Counters) *atomic.Int64 { return &n.Streams })
	counter("flood_closes_total", "Connections closed because the peer caused too much work without requests (ENHANCE_YOUR_CALM).",
		nil, func(n *engine.Counters) *atomic.Int64 { return &n.Floods })
	counter("panics_total", "Panics that the engine survived: each closed the connection that it was working for. The log has the stack.",
		nil, func(n *engine.Counters) *atomic.Int64 { return &n.Panics })
	const buffered = "Memory for data that waits to be forwarded: bodies in streams, output of connections."
	gauge("buffered_bytes", buffered, labels{"where": "streams"}, func(n *engine.Counters) *atomic.Int64 { return &n.Queued })
	gauge("buffered_bytes", buffered, labels{"where": "connections"}, func(n *engine.Counters) *atomic.Int64 { return &n.Output })
	return all
}
