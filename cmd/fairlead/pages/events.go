package pages

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

const (
	// maxSubscribers bounds the streams: each is a goroutine and a connection's stream, and a page that gets none reloads by itself.
	maxSubscribers = 64
	// eventGap is the least time between two events: a browser that redraws more often only costs.
	eventGap = time.Second
	// beat is how often a stream looks whether the process drains.
	beat = time.Second
	// heartbeat is how long a stream says nothing before a comment keeps proxies from closing it.
	heartbeat = 15 * time.Second
)

// serveEvents streams one event per change of the table, as server-sent events (HTML Standard, section 9.2): its data is the generation.
func (p *Pages) serveEvents(w http.ResponseWriter, r *http.Request) {
	if p.subscribers.Add(1) > maxSubscribers {
		p.subscribers.Add(-1)
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many streams of events", http.StatusTooManyRequests)
		return
	}
	defer p.subscribers.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var generation uint64 // that was sent last
	var sent time.Time
	for t := range latest.Of(r.Context(), p.cfg.Table, tick.C) {
		if p.cfg.Draining() {
			return
		}
		text := ": alive\n\n"
		switch quiet := time.Since(sent); {
		case t.Generation() != generation && quiet >= eventGap:
			generation = t.Generation()
			text = fmt.Sprintf("event: table\ndata: %d\n\n", generation)
		case quiet < heartbeat:
			continue
		}
		if _, err := io.WriteString(w, text); err != nil || rc.Flush() != nil {
			return
		}
		sent = time.Now()
	}
}
