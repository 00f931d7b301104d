package pages

import (
	"cmp"
	"embed"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

//go:embed assets
var assets embed.FS

// policy lets the page load only its own two files, connect only to us, and not be framed (Content
// Security Policy Level 3).
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// addHTML adds the overview, the detail page of an APIService, and their two files.
func (p *Pages) addHTML() error {
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		v := &view{Status: p.status(), List: listingOf(r)}
		if q := r.URL.Query().Get("explain"); q != "" {
			v.Asked = q
			if u, ok := request.UserFrom(r.Context()); ok && q[0] == '/' && len(q) <= maxPath {
				v.Explanation = p.explain(r.Context(), http.MethodGet, q, u)
			}
		}
		render(w, v, (*document).overview)
	})
	p.mux.HandleFunc("GET /apiservice/{name}", func(w http.ResponseWriter, r *http.Request) {
		s := p.status()
		for i := range s.APIServices {
			if a := &s.APIServices[i]; a.Name == r.PathValue("name") {
				render(w, &view{Status: s, One: a}, (*document).detail)
				return
			}
		}
		http.Error(w, "there is no such APIService", http.StatusNotFound)
	})
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"} {
		data, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return fmt.Errorf("reading assets: %w", err)
		}
		p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(data) // the client may have gone
		})
	}
	return nil
}

// view is the data of a page.
type view struct {
	*answer.Status
	// List is the requested part of the list.
	List listing
	// One is the APIService of the detail page.
	One *answer.APIService
	// Asked is the path in the explain box, Explanation the result.
	Asked       string
	Explanation *answer.Explanation
}

// Remotes returns the APIServices of extension servers, in order.
func (v *view) Remotes() []*answer.APIService {
	return v.those(func(a *answer.APIService) bool { return a.Kind != "local" })
}

// Unavailable counts the APIServices that receive no requests.
func (v *view) Unavailable() int {
	return len(v.those(func(a *answer.APIService) bool { return !a.Available() }))
}

func (v *view) those(which func(*answer.APIService) bool) []*answer.APIService {
	var list []*answer.APIService
	for i := range v.APIServices {
		if a := &v.APIServices[i]; which(a) {
			list = append(list, a)
		}
	}
	return list
}

// Headline summarizes the state in one sentence.
func (v *view) Headline() string {
	bad, all := v.Unavailable(), len(v.Remotes())
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

// Load adds up the requests to extension servers: those per second, how many of them are answered
// with 5xx, and those in flight, watches included.
func (v *view) Load() (rate, errors float64, inFlight int64) {
	for _, a := range v.Remotes() {
		t := cmp.Or(a.Traffic, &answer.Traffic{})
		rate, errors, inFlight = rate+t.Rate, errors+t.Errors, inFlight+a.InFlight+a.LongRunning
	}
	return rate, errors, inFlight
}

func render(w http.ResponseWriter, v *view, page func(*document, *view)) {
	var d document
	page(&d, v)
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(d.Bytes()) // the client may have gone
}
