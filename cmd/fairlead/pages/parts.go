package pages

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// begin puts everything above the body, which render ends; up is the path to the overview.
func (d *document) begin(title, up string) {
	d.put(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<noscript><meta http-equiv="refresh" content="10"></noscript>
<title>%s</title>
<link rel="stylesheet" href="%sstyle.css">
<script src="%spage.js" defer></script>
</head>
<body>`, title, up, up)
}

// state puts an APIService's verdict in one word.
func (d *document) state(a *answer.APIService) {
	switch {
	case a.Available():
		d.put(`<span class="state ok">✓ %s</span>`, a.Verdict.Reason)
	case a.Verdict.Status == "Unknown":
		d.put(`<span class="state unknown">? not checked yet</span>`)
	case a.Maintenance != "":
		d.put(`<span class="state bad">✗ Maintenance</span>`)
	default:
		d.put(`<span class="state bad">✗ %s</span>`, a.Verdict.Reason)
	}
}

func (d *document) health(e *answer.Endpoint) {
	shown := map[string][2]string{"unprobed": {"unknown", "?"}, "healthy": {"ok", "✓"}, "unhealthy": {"bad", "✗"}}[e.Health]
	d.put(`<span class="state %s">%s %s</span>`, shown[0], shown[1], e.Health)
}

func (d *document) transitions(now time.Time, list []answer.Transition) {
	d.put(`<section id="story" data-live aria-labelledby="story-title">
<h2 id="story-title">What has changed <span class="dim">UTC</span></h2>
<ol class="story">`)
	for _, t := range list {
		class := cmp.Or(map[string]string{"True": "ok", "False": "bad"}[t.Status], "unknown")
		d.put(`<li class="%s"><time datetime="%s">%s</time> <span><b>%s</b> `, class, t.Time.UTC().Format(time.RFC3339), stamp(now, t.Time), t.APIService)
		if t.Status == "gone" {
			d.put(`was deleted`)
		} else {
			d.put(`%s <span class="what">%s</span>`, t.Status, t.Reason)
		}
		d.some(` <span class="dim">%s</span>`, t.Message)
		d.put(`</span></li>`)
	}
	if len(list) == 0 {
		d.put(`<li class="dim">none since this process began</li>`)
	}
	d.put(`</ol></section>`)
}

// html/template would do all this by itself, but it calls methods by name: the linker would have to
// keep every exported method of the program, 9 MB.

// markup is HTML in constants of this package, never converted from strings. Other text is a value.
type markup string

type document struct{ bytes.Buffer }

// put adds markup. Its verbs, all %s, become escaped values between tags or in quoted attributes.
func (d *document) put(m markup, values ...any) {
	for i, v := range values {
		values[i] = html.EscapeString(printable.Lines(fmt.Sprint(v)))
	}
	_, _ = fmt.Fprintf(&d.Buffer, string(m), values...) // writing to a buffer cannot fail
}

// some puts markup with a value, unless the value is empty.
func (d *document) some(m markup, value string) {
	if value != "" {
		d.put(m, value)
	}
}

// items puts a list, each item of it in markup, unless it is empty.
func (d *document) items(class string, m markup, items []string) {
	if len(items) == 0 {
		return
	}
	d.put(`<ul class="%s">`, class)
	for _, item := range items {
		d.put(m, item)
	}
	d.put(`</ul>`)
}

// when returns s if really is set, and "" otherwise.
func when(really bool, s string) string {
	if really {
		return s
	}
	return ""
}

// stamp formats a time, with the date if it is not today.
func stamp(now, t time.Time) string {
	if now, t = now.UTC(), t.UTC(); now.Format(time.DateOnly) != t.Format(time.DateOnly) {
		return t.Format("Jan _2 15:04")
	}
	return t.Format(time.TimeOnly)
}

func worst(list []float64) float64 { return slices.Max(append([]float64{0}, list...)) }

// spark returns the SVG path of a curve through the values, the newest at the right edge. It has
// gaps where there was no request.
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
