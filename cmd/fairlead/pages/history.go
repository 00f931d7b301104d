package pages

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	maxTransitions = 100 // changes of verdicts that are kept: a day of a cluster with trouble; of one a quarter
	maxChanges     = 32  // of one endpoint's health that are kept: enough to see how one has flapped for an hour
)

type history struct {
	mu        sync.Mutex // guards what follows
	list      []answer.Transition
	endpoints map[string]map[string][]answer.Change // :: APIService in the table → address. Never nil
}

// changed records how the verdict of a remote APIService has changed, and the health of its endpoints.
func (h *history) changed(was, is *registry.Entry, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch v := is.Verdict; {
	case is.Name == "" && was.Verdict.Reason != "":
		h.addLocked(answer.Transition{Time: now, APIService: was.Name, Status: "gone"})
	case was.Verdict.Status != v.Status || was.Verdict.Reason != v.Reason:
		h.addLocked(answer.Transition{
			Time: now, APIService: is.Name, Status: string(v.Shown()),
			Reason: v.Reason, Message: v.Message,
		})
	}
	if is.Name == "" || len(is.Endpoints) == 0 {
		delete(h.endpoints, was.Name)
		return
	}
	old, kept := h.endpoints[is.Name], make(map[string][]answer.Change)
	before := make(map[string]registry.Health, len(was.Endpoints))
	for _, e := range was.Endpoints {
		before[e.Address] = e.Health
	}
	for _, e := range is.Endpoints {
		list := old[e.Address]
		if e.Health != before[e.Address] {
			last := list[max(len(list)-maxChanges+1, 0):]
			list = append(slices.Clone(last), answer.Change{Time: now, Health: healthName(e.Health)})
		}
		if len(list) > 0 {
			kept[e.Address] = list
		}
	}
	h.endpoints[is.Name] = kept
}

func (h *history) addLocked(x answer.Transition) {
	h.list = append(h.list, x)
	own := func(o answer.Transition) bool { return o.APIService == x.APIService }
	if others := slices.DeleteFunc(slices.Clone(h.list), own); len(h.list)-len(others) > maxTransitions/4 {
		at := slices.IndexFunc(h.list, own) // whose server makes it flap must not push out what is known of others
		h.list = slices.Delete(h.list, at, at+1)
	}
	h.list = h.list[max(len(h.list)-maxTransitions, 0):]
}

func (h *history) of(name string) map[string][]answer.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.endpoints[name] // replaced, but never modified
}

func (h *history) newest() []answer.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := append([]answer.Transition{}, h.list...) // [] rather than null
	slices.Reverse(out)
	return out
}

func remote(e *registry.Entry) *registry.Entry {
	if e == nil || e.Local() {
		return &registry.Entry{}
	}
	return e
}

// maxSubscribers bounds the event streams, a quarter for one user: each is a goroutine and a connection's stream.
const maxSubscribers = 64

// serveEvents streams the generation at each change of the table, as server-sent events (HTML Standard, section 9.2).
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
	const eventGap, heartbeat = time.Second, 15 * time.Second // more redraws only cost; proxies close silent streams
	rc, generation, sent := http.NewResponseController(w), uint64(0), time.Time{}
	for t := range latest.Of(r.Context(), p.cfg.Registry.Table, time.Tick(time.Second)) { // the process may drain
		if p.cfg.Ready.Draining.Load() {
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

func (p *Pages) serveBusiest(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "20"))
	a := p.cfg.Proxy.Busiest(r.Context(), cmp.Or(q.Get("by"), "caller"),
		cmp.Or(q.Get("window"), "minute"), cmp.Or(q.Get("sort"), "weight"), limit)
	if err != nil || a == nil {
		http.Error(w, "give by as caller, user, agent, resource or source; window as minute or hour; sort as weight, "+
			"requests, bytes, watches, errors, refused or slowest; limit from 1 to 100", http.StatusBadRequest)
		return
	}
	writeJSON(w, a)
}
