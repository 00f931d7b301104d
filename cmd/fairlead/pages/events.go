package pages

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// maxSubscribers bounds the streams: each is a goroutine and a connection's stream, and a page that gets none reloads by itself.
	maxSubscribers = 64
	// eventGap is the least time between two events: a browser that redraws more often only costs.
	eventGap = time.Second
	// beat is how often a stream looks whether the process drains, and heartbeats how many beats lie between two comments that keep proxies from closing it.
	beat       = time.Second
	heartbeats = 15
)

// events counts the subscribers.
type events struct{ subscribers atomic.Int64 }

// serveEvents streams one event per change of the table, as server-sent events (HTML Standard, section 9.2): its data is the generation.
func (p *Pages) serveEvents(w http.ResponseWriter, r *http.Request) {
	if p.events.subscribers.Add(1) > maxSubscribers {
		p.events.subscribers.Add(-1)
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many streams of events", http.StatusTooManyRequests)
		return
	}
	defer p.events.subscribers.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for beats := 0; !p.cfg.Draining(); {
		t := p.cfg.Table()
		if _, err := fmt.Fprintf(w, "event: table\ndata: %d\n\n", t.Generation()); err != nil || rc.Flush() != nil {
			return
		}
		sent := time.Now()
		for changed := false; !changed || time.Since(sent) < eventGap; {
			superseded := t.Superseded()
			if changed {
				superseded = nil // known already: only the gap is waited for
			}
			select {
			case <-superseded:
				changed = true
			case <-r.Context().Done():
				return
			case <-tick.C:
				if p.cfg.Draining() {
					return
				}
				if beats++; beats%heartbeats == 0 {
					if _, err := fmt.Fprint(w, ": alive\n\n"); err != nil || rc.Flush() != nil {
						return
					}
				}
			}
		}
	}
}
