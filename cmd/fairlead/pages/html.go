package pages

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

//go:embed assets *.html
var files embed.FS

func (p *Pages) addHTML() {
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		v := &view{Status: p.status(), List: listingOf(r)}
		if q := r.URL.Query().Get("explain"); q != "" {
			v.Asked = q
			if u, ok := request.UserFrom(r.Context()); ok && q[0] == '/' && len(q) <= maxPath {
				v.Explanation = p.explain(r.Context(), http.MethodGet, q, "", "", u)
			}
		}
		p.render(w, "overview.html", v)
	})
	p.mux.HandleFunc("GET /apiservice/{name}", func(w http.ResponseWriter, r *http.Request) {
		s, name := p.status(), r.PathValue("name")
		found := s.Those(func(a *answer.APIService) bool { return a.Name == name })
		if len(found) == 0 {
			http.Error(w, "there is no such APIService", http.StatusNotFound)
			return
		}
		s.Transitions = slices.DeleteFunc(s.Transitions, func(t answer.Transition) bool { return t.APIService != name })
		p.render(w, "apiservice.html", &view{Status: s, One: found[0]})
	})
	// It is not a part of the overview, because other people may see it.
	p.mux.HandleFunc("GET /busiest/{$}", func(w http.ResponseWriter, r *http.Request) {
		const rows = 10
		v := &view{}
		v.Summary, v.Busiest = p.cfg.Proxy.Busiest(r.Context(), "caller", "minute", "weight", rows).Table(true)
		p.render(w, "busiest.html", v)
	})
	for name, kind := range map[string]string{"style.css": "text/css", "page.js": "text/javascript"} {
		p.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			http.ServeFileFS(w, r, files, "assets/"+name)
		})
	}
}

type view struct {
	*answer.Status
	List        listing             // the requested part of the list
	One         *answer.APIService  // of the detail page
	Busiest     [][]string          // the callers of their page, with a head
	Summary     string              // a line about all of them
	Asked       string              // the path in the explain box
	Explanation *answer.Explanation // the result
}

// Sum is what all APIServices of extension servers have, with watches in flight.
func (v *view) Sum() (sum struct {
	Rate, Errors float64
	InFlight     int64
}) {
	for _, a := range v.Remotes() {
		t := cmp.Or(a.Traffic, &answer.Traffic{})
		sum.Rate, sum.Errors, sum.InFlight = sum.Rate+t.Rate, sum.Errors+t.Errors, sum.InFlight+a.InFlight+a.LongRunning
	}
	return sum
}

func (v *view) Locals() []*answer.APIService {
	return v.Those(func(a *answer.APIService) bool { return a.Kind == "local" })
}

// listing is the requested part of the list, from the query of the page's URL.
type listing struct {
	Query          string // part of a name, a service, an owner or a cause
	Page           int    // from 1
	Pages          int
	Found          int
	Previous, Next int // other pages. Zero means that there is none
}

func listingOf(r *http.Request) listing {
	q := r.URL.Query()
	l := listing{Query: strings.TrimSpace(q.Get("q"))}
	const maxQuery = 256 // longer than any name
	if len(l.Query) > maxQuery {
		l.Query = ""
	}
	l.Page, _ = strconv.Atoi(q.Get("page")) // 0 means the first, too
	return l
}

// Rows returns the APIServices of the page, the most urgent first.
func (v *view) Rows() []*answer.APIService {
	const pageSize = 100 // nobody reads a thousand, and drawing them is slow
	l := &v.List
	list := v.Remotes()
	if want := strings.ToLower(l.Query); want != "" {
		list = slices.DeleteFunc(list, func(a *answer.APIService) bool {
			text := strings.Join([]string{a.Name, a.Service, a.Owner, a.Verdict.Reason, a.Cause}, "\n")
			return !strings.Contains(strings.ToLower(text), want)
		})
	}
	slices.SortStableFunc(list, func(a, b *answer.APIService) int { return cmp.Compare(v.rank(a), v.rank(b)) })
	l.Found = len(list)
	l.Pages = max(1, (l.Found+pageSize-1)/pageSize)
	l.Page = min(max(l.Page, 1), l.Pages)
	if l.Previous = l.Page - 1; l.Page < l.Pages {
		l.Next = l.Page + 1
	}
	from := (l.Page - 1) * pageSize
	return list[from:min(from+pageSize, l.Found)]
}

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

// parse returns the templates of the pages, which escape values as their place needs it. A faulty one ends the start.
func parse() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"ago": now(answer.Ago), "left": now(answer.Left), "urgency": now(answer.Urgency), "stamp": now(stamp),
		"latency": answer.Latency, "rate": answer.Rate, "brief": Brief, "path": url.PathEscape,
		"spark": spark, "timeline": timeline, "worst": worst,
		"healthy": func(list []answer.Endpoint) int { return (&answer.APIService{Endpoints: list}).Healthy() },
		"served":  func(s *answer.Status) string { line, _ := s.Served(); return line },
		"ours":    func(link string) bool { return strings.HasPrefix(link, Runbooks) },
	}).ParseFS(files, "*.html"))
}

func now(f func(now, t time.Time) string) func(time.Time) string {
	return func(t time.Time) string { return f(time.Now(), t) }
}

// policy lets a page load only its own files, connect to us, and not be framed (Content Security Policy Level 3).
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (p *Pages) render(w http.ResponseWriter, page string, v *view) {
	var b bytes.Buffer
	if err := p.templates.ExecuteTemplate(&b, page, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write([]byte(printable.Lines(b.String()))) // the client may have gone
}

func stamp(now, t time.Time) string {
	if now, t = now.UTC(), t.UTC(); now.Format(time.DateOnly) != t.Format(time.DateOnly) {
		return t.Format("Jan _2 15:04")
	}
	return t.Format(time.TimeOnly)
}

func worst(list []float64) float64 { return slices.Max(append([]float64{0}, list...)) }

// spark returns the SVG path of a curve through the values, the newest at the right. Without a request it has gaps.
func spark(list []float64, width, height float64) string {
	const margin = 1.5 // half of the line's width, plus some space
	const least = .01  // the smallest latency that fills the height: lower ones should not look like peaks
	step := (width - 2*margin) / (points - 1)
	top := max(worst(list), least)
	var b strings.Builder
	for i, v := range list {
		if v <= 0 {
			continue
		}
		x := margin + step*float64(points-len(list)+i)
		y := height - margin - (height-2*margin)*v/top
		if i == 0 || list[i-1] <= 0 {
			fmt.Fprintf(&b, "M%.1f %.1f", max(x-step, margin), y) // a single value is drawn as a dash
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x, y)
	}
	return b.String()
}

type bar struct {
	answer.Change
	X, Width float64
}

// timeline returns an endpoint's health in the last hour, the newest at the right, and how often it became unhealthy.
func timeline(changes []answer.Change) (line struct {
	Bars []bar
	Fell int
}) {
	const width = 120
	end, now := float64(width), time.Now()
	for _, c := range slices.Backward(changes) {
		if c.Health == "unhealthy" && now.Sub(c.Time) < time.Hour {
			line.Fell++
		}
		if end > 0 {
			at := max(width*(1-now.Sub(c.Time).Hours()), 0)
			line.Bars = append(line.Bars, bar{c, at, end - at})
			end = at
		}
	}
	return line
}
