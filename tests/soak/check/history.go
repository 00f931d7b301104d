package check

import (
	"sync"
	"time"
)

// History is which servers may answer for which group, over time: what APIServices and endpoints
// said, until Fairlead is known to have read the next version.
type History struct {
	mu    sync.Mutex // guards spans
	spans map[[2]string][]span
}

type span struct{ from, until time.Time } // until is zero while the server may answer

// Allow permits server to receive requests for group from now on.
func (h *History) Allow(group, server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spans == nil {
		h.spans = map[[2]string][]span{}
	}
	key := [2]string{group, server}
	list := h.spans[key]
	if n := len(list); n > 0 && list[n-1].until.IsZero() {
		return // it already may
	}
	h.spans[key] = append(list, span{from: time.Now()})
}

// Forbid forbids server to receive requests for group that begin from now on.
func (h *History) Forbid(group, server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.spans[[2]string{group, server}]
	if n := len(list); n > 0 && list[n-1].until.IsZero() {
		list[n-1].until = time.Now()
	}
}

// allowed reports whether server was allowed to receive a request for group at any moment between
// begun and ended.
func (h *History) allowed(group, server string, begun, ended time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.spans[[2]string{group, server}] {
		if !s.from.After(ended) && (s.until.IsZero() || begun.Before(s.until)) {
			return true
		}
	}
	return false
}
