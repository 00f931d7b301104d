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
	for _, changes := range latest.Changes(ctx, table, nil) {
		h.add(transitions(changes, time.Now())...)
	}
	return ctx.Err()
}

// transitions are how the verdicts of remote APIServices have changed.
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

// remote is the entry, or an empty one where there is none or it is Local.
func remote(e *registry.Entry) *registry.Entry {
	if e == nil || e.Local() {
		return &registry.Entry{}
	}
	return e
}
