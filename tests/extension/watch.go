package extension

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Event is sent to the watches of a group on demand, beside those that changes of objects cause.
type Event struct {
	// Group is the API group. Empty: the first one served.
	Group string `json:"group,omitempty"`
	// Namespace restricts it to watches of that namespace and of all. Empty: every watch.
	Namespace string `json:"namespace,omitempty"`
	// Type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR. Empty: MODIFIED.
	Type string `json:"type,omitempty"`
	// Object is sent as it is. Nil: an object without content.
	Object json.RawMessage `json:"object,omitempty"`
}

// Emit sends an event.
func (s *Server) Emit(e Event) error {
	if e.Group == "" {
		e.Group = s.versions[0].group
	}
	st := s.stores[e.Group]
	if st == nil {
		return fmt.Errorf("emitting event: no group %q", e.Group)
	}
	if e.Type == "" {
		e.Type = "MODIFIED"
	}
	if e.Object == nil {
		e.Object = json.RawMessage("{}")
	}
	st.tell(change{event: e.Type, namespace: e.Namespace, raw: e.Object})
	return nil
}

// watch streams events until the client, timeoutSeconds or the server ends it. Without a
// resourceVersion, or with 0, it begins with what exists.
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
	b := []byte(e.raw)
	if e.widget != nil {
		b = e.widget.in(gv)
	}
	_, err := fmt.Fprintf(w, "{\"type\":%q,\"object\":%s}\n", e.event, b)
	return err
}
