package pages

import (
	"cmp"
	"embed"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/busiest"
)

//go:embed assets
var assets embed.FS

// policy lets the page load only its own two files, connect only to us, and not be framed (Content
// Security Policy Level 3).
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// addHTML adds the overview, the detail page of an APIService, and their two files.
func (p *Pages) addHTML() {
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		v := &view{Status: p.status(), List: listingOf(r)}
		if q := r.URL.Query().Get("explain"); q != "" {
			v.Asked = q
			if u, ok := request.UserFrom(r.Context()); ok && q[0] == '/' && len(q) <= maxPath {
				v.Explanation = p.explain(r.Context(), http.MethodGet, q, "", "", u)
			}
		}
		render(w, v, (*document).overview)
	})
	p.mux.HandleFunc("GET /apiservice/{name}", func(w http.ResponseWriter, r *http.Request) {
		s := p.status()
		found := s.Those(func(a *answer.APIService) bool { return a.Name == r.PathValue("name") })
		if len(found) == 0 {
			http.Error(w, "there is no such APIService", http.StatusNotFound)
			return
		}
		render(w, &view{Status: s, One: found[0]}, (*document).detail)
	})
	p.mux.HandleFunc("GET /busiest/{$}", func(w http.ResponseWriter, r *http.Request) {
		const rows = 10
		render(w, &view{Busiest: p.cfg.Proxy.Busiest(r.Context(), "caller", "minute", "weight", rows)}, (*document).busiest)
	})
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"} {
		p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			http.ServeFileFS(w, r, assets, "assets/"+name)
		})
	}
}

type view struct {
	*answer.Status
	// List is the requested part of the list.
	List listing
	// One is the APIService of the detail page.
	One *answer.APIService
	// Busiest are the callers of their page.
	Busiest *busiest.Answer
	// Asked is the path in the explain box, Explanation the result.
	Asked       string
	Explanation *answer.Explanation
}

// Headline summarizes the state in one sentence.
func (v *view) Headline() string {
	bad, all := len(v.Unavailable()), len(v.Remotes())
	switch {
	case !v.Complete:
		return "The table of APIServices is not complete yet."
	case all == 0:
		return "There are no APIServices of extension servers."
	case bad == 0 && all == 1:
		return "The one APIService of an extension server can be used."
	case bad == 0:
		return fmt.Sprintf("All %d APIServices of extension servers can be used.", all)
	case bad == 1:
		return fmt.Sprintf("One of %d APIServices of extension servers cannot be used.", all)
	}
	return fmt.Sprintf("%d of %d APIServices of extension servers cannot be used.", bad, all)
}

func render(w http.ResponseWriter, v *view, page func(*document, *view)) {
	var d document
	page(&d, v)
	d.put(`</main>
</body>
</html>`)
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(d.Bytes()) // the client may have gone
}

// listing is the requested part of the list, from the query of the page's URL.
type listing struct {
	Query string // part of a name, a service, an owner or a cause
	Page  int    // from 1
	Pages int
	Found int
}

// maxQuery is longer than any name.
const maxQuery = 256

func listingOf(r *http.Request) listing {
	q := r.URL.Query()
	l := listing{Query: strings.TrimSpace(q.Get("q"))}
	if len(l.Query) > maxQuery {
		l.Query = ""
	}
	l.Page, _ = strconv.Atoi(q.Get("page")) // 0 means the first, too
	return l
}

// rows returns the APIServices of the page, the most urgent first.
func (v *view) rows() []*answer.APIService {
	const pageSize = 100 // nobody reads a thousand, and drawing them is slow
	l := &v.List
	list := v.Remotes()
	if want := strings.ToLower(l.Query); want != "" {
		list = slices.DeleteFunc(list, func(a *answer.APIService) bool {
			return !strings.Contains(strings.ToLower(strings.Join([]string{a.Name, a.Service, a.Owner, a.Verdict.Reason, a.Cause}, "\n")), want)
		})
	}
	slices.SortStableFunc(list, func(a, b *answer.APIService) int { return cmp.Compare(v.rank(a), v.rank(b)) })
	l.Found = len(list)
	l.Pages = max(1, (l.Found+pageSize-1)/pageSize)
	l.Page = min(max(l.Page, 1), l.Pages)
	from := (l.Page - 1) * pageSize
	return list[from:min(from+pageSize, l.Found)]
}

// rank returns how urgent an APIService is; 0 is the most urgent.
func (v *view) rank(a *answer.APIService) int {
	switch {
	case a.Verdict.Status == "False" && a.Maintenance == "":
		return 0
	case !a.Available():
		return 1
	case a.Cause != "" || answer.Urgency(v.Time, a.Expires()) != "dim" || a.Traffic != nil && a.Traffic.Errors > 0:
		return 2
	}
	return 3
}

// address returns the URL of another page of the same list.
func (l *listing) address(page int) string {
	q := url.Values{"page": {strconv.Itoa(page)}}
	if l.Query != "" {
		q.Set("q", l.Query)
	}
	return "?" + q.Encode()
}

// search puts the box that filters the list. It is not redrawn with the list.
func (d *document) search(v *view) {
	d.put(`<section aria-labelledby="table-title">
<h2 id="table-title">APIServices of extension servers <span class="dim">broken ones first</span></h2>
<form action="./" method="get" role="search">
<label for="q" class="hidden">Filter by name, service, owner or cause</label>
<input id="q" name="q" type="search" value="%s" placeholder="name, service, owner or cause" spellcheck="false" autocomplete="off" autocapitalize="off" maxlength="%s">
<button>Filter</button>
</form>
</section>`, v.List.Query, maxQuery)
}

// turn puts links to the other pages of the list.
func (d *document) turn(l *listing) {
	if l.Query != "" {
		d.put(`<p class="dim">%s with “%s” · <a href="./">all</a></p>`, l.Found, l.Query)
	}
	if l.Pages == 1 {
		return
	}
	d.put(`<nav aria-label="Pages of the list"><p>Page %s of %s`, l.Page, l.Pages)
	d.some(` · <a rel="prev" href="%s">previous</a>`, when(l.Page > 1, l.address(l.Page-1)))
	d.some(` · <a rel="next" href="%s">next</a>`, when(l.Page < l.Pages, l.address(l.Page+1)))
	d.put(`</p></nav>`)
}

// help puts what to do about an APIService: the advice, a command to copy, and the alert's runbook.
func (d *document) help(a *answer.APIService) {
	d.some(`<span class="sub">%s</span>`, a.Advice)
	d.some(`<span class="sub"><code class="copy">%s</code></span>`, a.Command)
	if strings.HasPrefix(a.Runbook, Runbooks) { // a link must begin with a constant
		d.put(`<span class="sub"><a href="%s" rel="noreferrer" aria-label="Runbook for %s">runbook</a></span>`, a.Runbook, a.Name)
	}
}
