package pages

import (
	"cmp"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// begin puts everything above the body; up is the path to the overview.
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

func (d *document) end() {
	d.put(`</main>
</body>
</html>`)
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

// fewer returns the CSS class for the number of healthy endpoints.
func fewer(a *answer.APIService) string {
	switch healthy := a.Healthy(); {
	case healthy == 0 && !a.Available():
		return " bad"
	case healthy < len(a.Endpoints):
		return " warn"
	}
	return ""
}

func (d *document) health(e *answer.Endpoint) {
	class, sign := "unknown", "?"
	switch e.Health {
	case "healthy":
		class, sign = "ok", "✓"
	case "unhealthy":
		class, sign = "bad", "✗"
	}
	d.put(`<span class="state %s">%s %s</span>`, class, sign, e.Health)
}

func (d *document) transitions(now time.Time, list []answer.Transition) {
	d.put(`<ol class="story">`)
	for i := range list {
		t := &list[i]
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
	d.put(`</ol>`)
}
