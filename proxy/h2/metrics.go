package h2

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// collector adds up the counters of all shards at scrape time: working shards share nothing.
type collector struct {
	shards   []*shard
	conns    *prometheus.Desc
	streams  *prometheus.Desc
	resets   *prometheus.Desc
	goAways  *prometheus.Desc
	floods   *prometheus.Desc
	panics   *prometheus.Desc
	buffered *prometheus.Desc
}

func newCollector(shards []*shard) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_h2_"+name, help, labels, nil)
	}
	return &collector{
		shards:   shards,
		conns:    desc("connections", "HTTP/2 connections by side: client, backend.", "side"),
		streams:  desc("streams", "Streams of clients that the engine has under way."),
		resets:   desc("resets_total", "Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, lane (deadline, drain, panic).", "cause"),
		goAways:  desc("goaways_total", "GOAWAY frames by side of the connection (client, backend) and direction (sent, received).", "side", "direction"),
		floods:   desc("flood_closes_total", "Connections closed because the peer caused too much work without requests (ENHANCE_YOUR_CALM)."),
		panics:   desc("panics_total", "Panics that the engine survived: each closed the connection that it was working for. The log has the stack."),
		buffered: desc("buffered_bytes", "Memory for data that waits to be forwarded: bodies in streams, output of connections.", "where"),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.conns, c.streams, c.resets, c.goAways, c.floods, c.panics, c.buffered} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	show := func(d *prometheus.Desc, kind prometheus.ValueType, of func(n *engine.Counters) *atomic.Int64, labels ...string) {
		sum := int64(0)
		for _, sh := range c.shards {
			sum += of(&sh.e.Count).Load()
		}
		to <- prometheus.MustNewConstMetric(d, kind, float64(sum), labels...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for side, label := range [...]string{"client", "backend"} {
		show(c.conns, gauge, func(n *engine.Counters) *atomic.Int64 { return &n.Conns[side] }, label)
		show(c.goAways, counter, func(n *engine.Counters) *atomic.Int64 { return &n.Sent[side] }, label, "sent")
		show(c.goAways, counter, func(n *engine.Counters) *atomic.Int64 { return &n.Received[side] }, label, "received")
	}
	for cause, label := range [...]string{"client", "backend", "limit", "protocol", "lane"} {
		show(c.resets, counter, func(n *engine.Counters) *atomic.Int64 { return &n.Resets[cause] }, label)
	}
	show(c.streams, gauge, func(n *engine.Counters) *atomic.Int64 { return &n.Streams })
	show(c.floods, counter, func(n *engine.Counters) *atomic.Int64 { return &n.Floods })
	show(c.panics, counter, func(n *engine.Counters) *atomic.Int64 { return &n.Panics })
	show(c.buffered, gauge, func(n *engine.Counters) *atomic.Int64 { return &n.Queued }, "streams")
	show(c.buffered, gauge, func(n *engine.Counters) *atomic.Int64 { return &n.Output }, "connections")
}
