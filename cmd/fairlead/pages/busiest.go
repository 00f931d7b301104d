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

// busiest writes the page of the busiest callers. It is not a part of the overview, because other
// people may see it.
func (d *document) busiest(v *view) {
	summary, table := v.Busiest.Table(true)
	d.begin("Busiest · Fairlead", "../")
	d.put(`<header>
<p class="brand"><a href="../">Fairlead</a></p>
<p class="dim"><span id="live" role="status">not live</span> · <a href="../busiest">JSON</a></p>
</header>
<main>
<section id="busiest" data-live aria-labelledby="busiest-title">
<h1 id="busiest-title">Busiest callers of the last minute</h1>
<p>%s</p>
<div class="card flush" tabindex="0" role="region" aria-labelledby="busiest-title">
<table>`, summary)
	for i, row := range table {
		d.put(`<tr>`)
		for _, text := range row {
			d.put(map[bool]markup{true: `<th scope="col">%s</th>`, false: `<td>%s</td>`}[i == 0], text)
		}
		d.put(`</tr>`)
	}
	d.put(`</table>
</div>
<p class="dim">All replicas: <code class="copy">kubectl fairlead top --replicas</code></p>
</section>`)
}
