package h2

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
)

// counters are what one engine counts. They are written under the shard's mutex and read by a scrape without it.
type counters struct {
	conns    [2]atomic.Int64 // by side
	streams  atomic.Int64    // of clients
	resets   [resetCauses]atomic.Int64
	sent     [2]atomic.Int64 // GOAWAY by side
	received [2]atomic.Int64
	floods   atomic.Int64
	queued   atomic.Int64 // bytes of chunks that hold bodies
	panics   atomic.Int64
	output   atomic.Int64 // bytes that the driver has taken and not yet written
}

// resetCause is why a stream was reset. One reset of a forwarded stream counts once, although both its sides see RST_STREAM.
type resetCause uint8

const (
	resetByClient  resetCause = iota // the client sent RST_STREAM
	resetByBackend                   // the backend did
	resetByLimit                     // more streams than SETTINGS_MAX_CONCURRENT_STREAMS allows
	resetProtocol                    // a peer broke the protocol on the stream
	resetByLane                      // a deadline, a drain, a handler that panicked, an upload that nobody wants
	resetCauses
)

func (c resetCause) String() string {
	return [resetCauses]string{"client", "backend", "limit", "protocol", "lane"}[c]
}

func (c dir) String() string { return [2]string{"client", "backend"}[c] }

func (n *counters) reset(c resetCause) { n.resets[c].Add(1) }

// aborted counts a reset that the engine decided on. What a peer began was counted when its frame came.
func (n *counters) aborted(r Reason) {
	switch r {
	case ReasonDeadline, ReasonDrain, ReasonAbort, ReasonRetired:
		n.reset(resetByLane)
	default:
	}
}

// failed counts a connection that was closed for a connection error.
func (n *counters) failed(err *connError) {
	if err.code == http2.ErrCodeEnhanceYourCalm {
		n.floods.Add(1)
	}
}

// collector shows the counters of all shards, added up at scrape time: nothing is shared between shards while they work.
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
		conns:    desc("connections", "HTTP/2 connections of the frame lane by side: client, backend.", "side"),
		streams:  desc("streams", "Streams of clients that the frame lane has under way."),
		resets:   desc("resets_total", "Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, lane (deadline, drain, panic).", "cause"),
		goAways:  desc("goaways_total", "GOAWAY frames by side of the connection (client, backend) and direction (sent, received).", "side", "direction"),
		floods:   desc("flood_closes_total", "Connections closed because the peer made too much work for nothing (ENHANCE_YOUR_CALM)."),
		panics:   desc("panics_total", "Panics of the frame lane that were survived: each ended the connection on whose behalf it worked. The log has the stack."),
		buffered: desc("buffered_bytes", "Memory that holds what could not be passed on yet: bodies in streams, output of connections.", "where"),
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
	show := func(d *prometheus.Desc, kind prometheus.ValueType, of func(n *counters) *atomic.Int64, labels ...string) {
		sum := int64(0)
		for _, sh := range c.shards {
			sum += of(&sh.e.count).Load()
		}
		to <- prometheus.MustNewConstMetric(d, kind, float64(sum), labels...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for _, side := range []dir{up, down} {
		show(c.conns, gauge, func(n *counters) *atomic.Int64 { return &n.conns[side] }, side.String())
		show(c.goAways, counter, func(n *counters) *atomic.Int64 { return &n.sent[side] }, side.String(), "sent")
		show(c.goAways, counter, func(n *counters) *atomic.Int64 { return &n.received[side] }, side.String(), "received")
	}
	for cause := range resetCauses {
		show(c.resets, counter, func(n *counters) *atomic.Int64 { return &n.resets[cause] }, cause.String())
	}
	show(c.streams, gauge, func(n *counters) *atomic.Int64 { return &n.streams })
	show(c.floods, counter, func(n *counters) *atomic.Int64 { return &n.floods })
	show(c.panics, counter, func(n *counters) *atomic.Int64 { return &n.panics })
	show(c.buffered, gauge, func(n *counters) *atomic.Int64 { return &n.queued }, "streams")
	show(c.buffered, gauge, func(n *counters) *atomic.Int64 { return &n.output }, "connections")
}
