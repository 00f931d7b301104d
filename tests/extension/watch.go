package extension

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Emit sends an event without content to every watch of the first served group, in addition to
// those for changes.
func (s *Server) Emit() { s.stores[s.versions[0].group].tell(change{event: "MODIFIED"}) }

// watch streams events until the client, timeoutSeconds or the server ends it. Without a
// resourceVersion, or with 0, it starts with the existing objects.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, c call) {
	query := r.URL.Query()
	var end <-chan time.Time // nil: never
	if seconds, err := strconv.Atoi(query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		end = time.After(time.Duration(seconds) * time.Second)
	}
	events, existing := c.store.watch(c.namespace)
	if events == nil {
		writeStatus(w, http.StatusTooManyRequests, "too many watches")
		return
	}
	defer c.store.unwatch(events)
	s.stats.watchers.Add(1)
	defer s.stats.watchers.Add(-1)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if v := query.Get("resourceVersion"); v == "" || v == "0" {
		for _, o := range existing {
			if writeEvent(w, c.gv, change{event: "ADDED", widget: o}) != nil {
				return
			}
		}
	}
	flusher := http.NewResponseController(w)
	for flusher.Flush() == nil {
		select {
		case e, ok := <-events.events:
			if !ok || writeEvent(w, c.gv, e) != nil {
				return
			}
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func writeEvent(w http.ResponseWriter, gv groupVersion, e change) error {
	b := []byte("{}")
	if e.widget != nil {
		b = e.widget.in(gv)
	}
	_, err := fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", e.event, b)
	return err
}
