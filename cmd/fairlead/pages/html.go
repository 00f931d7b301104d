package pages

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

//go:embed assets
var assets embed.FS

// policy lets the page load nothing but its own two files, talk to nobody but us, and be framed by nobody (Content Security Policy Level 3).
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// addHTML adds the page, the detail of an APIService, and their two files.
func (p *Pages) addHTML() error {
	t, err := template.New("").Funcs(template.FuncMap{"ago": ago, "days": days}).ParseFS(assets, "assets/*.html")
	if err != nil {
		return fmt.Errorf("reading templates: %w", err)
	}
	p.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		v := &view{Status: p.status()}
		if q := r.URL.Query().Get("explain"); q != "" {
			v.Asked = q
			if u, ok := request.UserFrom(r.Context()); ok && q[0] == '/' && len(q) <= maxPath {
				v.Explanation = p.explain(http.MethodGet, q, u)
			}
		}
		render(w, t, "page.html", v)
	})
	p.mux.HandleFunc("GET /apiservice/{name}", func(w http.ResponseWriter, r *http.Request) {
		s := p.status()
		for i := range s.APIServices {
			if a := &s.APIServices[i]; a.Name == r.PathValue("name") {
				render(w, t, "detail.html", &view{Status: s, One: a})
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
			_, _ = w.Write(data) // a caller that has gone needs no answer
		})
	}
	return nil
}

// view is what the templates show.
type view struct {
	*Status
	// One is the APIService of the detail.
	One *APIService
	// Asked is the path in the explain box, Explanation the answer.
	Asked       string
	Explanation *Explanation
}

// Unavailable counts the APIServices that get no requests.
func (v *view) Unavailable() int {
	n := 0
	for i := range v.APIServices {
		if !v.APIServices[i].Available() {
			n++
		}
	}
	return n
}

// Remote counts those that are not the local apiserver's.
func (v *view) Remote() int {
	n := 0
	for i := range v.APIServices {
		if v.APIServices[i].Kind != "local" {
			n++
		}
	}
	return n
}

// History is what the transitions say of the one APIService.
func (v *view) History() []Transition {
	var own []Transition
	for _, t := range v.Transitions {
		if v.One != nil && t.APIService == v.One.Name {
			own = append(own, t)
		}
	}
	return own
}

func render(w http.ResponseWriter, t *template.Template, name string, v *view) {
	var b bytes.Buffer // whole or not at all
	if err := t.ExecuteTemplate(&b, name, v); err != nil {
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(b.Bytes()) // a caller that has gone needs no answer
}

// ago is how long something has lasted, in its two largest units.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := max(now.Sub(t), 0)
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// days is how many whole days are left, as a certificate's life is counted.
func days(now, t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return fmt.Sprintf("%dd", int(t.Sub(now)/(24*time.Hour)))
}
