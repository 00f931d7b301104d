package pages

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/fairlead-proxy/fairlead/proxy/busiest"
)

// serveBusiest answers with the busiest callers.
func (p *Pages) serveBusiest(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var chosen []string
	for _, choice := range busiest.Choices() {
		value := cmp.Or(q.Get(choice.Name), choice.Values[0])
		if !slices.Contains(choice.Values, value) {
			http.Error(w, choice.String(), http.StatusBadRequest)
			return
		}
		chosen = append(chosen, value)
	}
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "20"))
	if err != nil || limit < 1 || limit > busiest.MaxRows {
		http.Error(w, "give a limit from 1 to "+strconv.Itoa(busiest.MaxRows), http.StatusBadRequest)
		return
	}
	writeJSON(w, p.cfg.Proxy.Busiest(r.Context(), chosen[0], chosen[1], chosen[2], limit))
}
