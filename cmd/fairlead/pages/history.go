package pages

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// maxTransitions bounds the changes of verdicts that are kept: a day of a cluster with trouble, in
// 20 KB.
const maxTransitions = 100

// maxChanges bounds the changes of one endpoint's health that are kept: enough to see how one has
// flapped for an hour. An endpoint that never changed has none.
const maxChanges = 32

// history stores the last transitions.
type history struct {
	mu   sync.Mutex // guards what follows
	list []answer.Transition
	// endpoints are the changes of each endpoint in the table, :: APIService → address.
	endpoints map[string]map[string][]answer.Change
}

// changed records how the endpoints of an APIService have changed.
func (h *history) changed(was, is *registry.Entry, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if is.Name == "" || len(is.Endpoints) == 0 {
		delete(h.endpoints, was.Name)
		return
	}
	old, kept := h.endpoints[is.Name], make(map[string][]answer.Change)
	before := make(map[string]registry.Health, len(was.Endpoints))
	for i := range was.Endpoints {
		before[was.Endpoints[i].Address] = was.Endpoints[i].Health
	}
	for i := range is.Endpoints {
		e := &is.Endpoints[i]
		list := old[e.Address]
		if e.Health != before[e.Address] {
			list = append(slices.Clone(list[max(len(list)-maxChanges+1, 0):]), answer.Change{Time: now, Health: healthName(e.Health)})
		}
		if len(list) > 0 {
			kept[e.Address] = list
		}
	}
	if h.endpoints == nil {
		h.endpoints = make(map[string]map[string][]answer.Change)
	}
	h.endpoints[is.Name] = kept
}

// of returns the changes of an APIService's endpoints, by address.
func (h *history) of(name string) map[string][]answer.Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.endpoints[name] // replaced, but never modified
}

func (h *history) add(t ...answer.Transition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, t...)
	if over := len(h.list) - maxTransitions; over > 0 {
		h.list = slices.Delete(h.list, 0, over)
	}
}

func (h *history) newest() []answer.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := append([]answer.Transition{}, h.list...) // [] rather than null
	slices.Reverse(out)
	return out
}

// follow records how verdicts change until ctx ends. It misses a change that is reverted before it
// looks.
func (h *history) follow(ctx context.Context, table func() *registry.Table) error {
	for _, changes := range latest.Changes(ctx, table, nil) {
		now := time.Now()
		h.add(transitions(changes, now)...)
		for _, c := range changes {
			h.changed(remote(c.Old), remote(c.New), now)
		}
	}
	return ctx.Err()
}

// transitions returns how the verdicts of remote APIServices have changed.
func transitions(changes []latest.Change[*registry.Entry], now time.Time) []answer.Transition {
	var out []answer.Transition
	for _, c := range changes {
		was, is := remote(c.Old), remote(c.New)
		switch v := is.Verdict; {
		case is.Name == "" && was.Verdict.Reason != "":
			out = append(out, answer.Transition{Time: now, APIService: was.Name, Status: "gone"})
		case was.Verdict.Status != v.Status || was.Verdict.Reason != v.Reason:
			out = append(out, answer.Transition{Time: now, APIService: is.Name, Status: verdict(&v).Status, Reason: v.Reason, Message: v.Message})
		}
	}
	return out
}

// remote returns the entry, or an empty one if it is nil or Local.
func remote(e *registry.Entry) *registry.Entry {
	if e == nil || e.Local() {
		return &registry.Entry{}
	}
	return e
}
