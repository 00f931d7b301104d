package pages

import (
	"cmp"
	"net/http"
	"strconv"
)

// serveBusiest answers with the busiest callers.
func (p *Pages) serveBusiest(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "20"))
	a := p.cfg.Proxy.Busiest(r.Context(), cmp.Or(q.Get("by"), "caller"), cmp.Or(q.Get("window"), "minute"), cmp.Or(q.Get("sort"), "weight"), limit)
	if err != nil || a == nil {
		http.Error(w, "give by as caller, user, agent, resource or source; window as minute or hour; "+
			"sort as weight, requests, bytes, watches, errors, refused or slowest; limit from 1 to 100", http.StatusBadRequest)
		return
	}
	writeJSON(w, a)
}
