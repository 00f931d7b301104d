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

// maxTransitions is how many changes of verdicts are kept: a day of a cluster with trouble, in 20 KB.
const maxTransitions = 100

// history keeps the last transitions.
type history struct {
	mu   sync.Mutex // guards list
	list []answer.Transition
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
	out := slices.Clone(h.list)
	slices.Reverse(out)
	return out
}

// follow notes how verdicts change until ctx ends. A change that is taken back before it is seen is none.
func (h *history) follow(ctx context.Context, table func() *registry.Table) error {
	last := map[string]registry.Verdict{}
	for t := range latest.Of(ctx, table, nil) {
		if t.Complete() {
			h.add(compare(last, t.Entries(), time.Now())...)
		}
	}
	return ctx.Err()
}

// compare brings last up to date and returns what has changed in it.
func compare(last map[string]registry.Verdict, entries []*registry.Entry, now time.Time) []answer.Transition {
	var changes []answer.Transition
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		if e.Local() {
			continue
		}
		seen[e.Name] = true
		v := e.Verdict
		if old, known := last[e.Name]; (!known && v.Reason == "") || (known && old.Status == v.Status && old.Reason == v.Reason) {
			continue
		}
		last[e.Name] = v
		shown := verdict(&v)
		changes = append(changes, answer.Transition{Time: now, APIService: e.Name, Status: shown.Status, Reason: v.Reason, Message: v.Message})
	}
	for name := range last {
		if !seen[name] {
			delete(last, name)
			changes = append(changes, answer.Transition{Time: now, APIService: name, Status: "gone"})
		}
	}
	return changes
}
