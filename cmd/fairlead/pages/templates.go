package pages

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

//go:embed *.html
var files embed.FS

// parse returns the templates of the pages, which escape values as their place needs it. A faulty one ends the start.
func parse() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"ago": now(answer.Ago), "left": now(answer.Left), "urgency": now(answer.Urgency), "stamp": now(stamp),
		"latency": answer.Latency, "rate": answer.Rate, "brief": Brief, "path": url.PathEscape, "spark": spark, "timeline": timeline, "worst": worst,
		"ours": func(link string) bool { return strings.HasPrefix(link, Runbooks) },
	}).ParseFS(files, "*.html"))
}

func now(f func(now, t time.Time) string) func(time.Time) string {
	return func(t time.Time) string { return f(time.Now(), t) }
}

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

// stamp formats a time, with the date if it is not today.
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
	pen := false
	for i, v := range list {
		if v <= 0 {
			pen = false
			continue
		}
		x := margin + step*float64(points-len(list)+i)
		y := height - margin - (height-2*margin)*v/top
		if !pen {
			fmt.Fprintf(&b, "M%.1f %.1f", max(x-step, margin), y) // a single value is drawn as a dash
		}
		fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		pen = true
	}
	return b.String()
}

// bar is a time in which an endpoint's health was the same.
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
