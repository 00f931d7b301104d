package pages

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

const (
	// maxSubscribers bounds the event streams, a quarter for one user: each is a goroutine and a
	// connection's stream.
	maxSubscribers = 64
	// eventGap is the minimum time between two events: more frequent redraws only cost.
	eventGap = time.Second
	// drainInterval is how often a stream checks whether the process drains.
	drainInterval = time.Second
	// heartbeat is the idle time after which a comment keeps proxies from closing the stream.
	heartbeat = 15 * time.Second
)

// serveEvents streams one event per change of the table, as server-sent events (HTML Standard,
// section 9.2): its data is the generation.
func (p *Pages) serveEvents(w http.ResponseWriter, r *http.Request) {
	u, _ := request.UserFrom(r.Context()) // the admin port knows no user
	place, ok := p.subscribers.Take(bound.Caller(u, r.RemoteAddr).AnyConn(), 1, maxSubscribers)
	if !ok {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many streams of events", http.StatusTooManyRequests)
		return
	}
	defer place.Leave()
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	var generation uint64 // last sent
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
