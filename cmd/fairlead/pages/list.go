package pages

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// pageSize is how many APIServices one page lists: nobody reads a thousand in one table, and
// drawing them is slow.
const pageSize = 100

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
	case a.Cause != "" || urgency(v.Time, a.Expires()) != "dim" || a.Traffic != nil && a.Traffic.Errors > 0:
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
	if l.Page > 1 {
		d.put(` · <a rel="prev" href="%s">previous</a>`, l.address(l.Page-1))
	}
	if l.Page < l.Pages {
		d.put(` · <a rel="next" href="%s">next</a>`, l.address(l.Page+1))
	}
	d.put(`</p></nav>`)
}

// help puts what to do about an APIService: the advice, a command to copy, and the alert's runbook.
func (d *document) help(a *answer.APIService) {
	d.some(`<span class="sub">%s</span>`, a.Advice)
	d.some(`<span class="sub"><code class="copy">%s</code></span>`, a.Command)
	if strings.HasPrefix(a.Runbook, runbooks) { // a link must begin with a constant
		d.put(`<span class="sub"><a href="%s" rel="noreferrer" aria-label="Runbook for %s">runbook</a></span>`, a.Runbook, a.Name)
	}
}
