package pages

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

func (d *document) detail(v *view) {
	a := v.One
	d.begin(a.Name+" · Fairlead", "../")
	d.put(`<header>
<p class="brand"><a href="../">Fairlead</a></p>
<p class="dim"><span id="live" role="status">not live</span> · <a href="../?explain=%s">explain</a></p>
</header>
<main>`, url.QueryEscape(a.Path()))
	d.facts(v.Time, a)
	if a.Kind != "local" {
		d.endpoints(v.Time, a)
		d.put(`<div class="two">`)
		d.documents(v.Time, a)
		d.trust(v.Time, a)
		d.put(`</div>`)
	}
	d.transitions(v.Time, slices.DeleteFunc(slices.Clone(v.Transitions), func(t answer.Transition) bool { return t.APIService != a.Name }))
}

func (d *document) facts(now time.Time, a *answer.APIService) {
	d.put(`<section id="summary" data-live aria-labelledby="name">
<h1 id="name">%s</h1>
<p class="answer">`, a.Name)
	d.state(a)
	d.put(` <span class="dim">for %s</span></p>`, answer.Ago(now, a.Verdict.Since))
	if !a.Available() {
		d.put(`<p class="bad">%s</p>`, a.Why())
	}
	d.items("note warn", `<li>%s</li>`, a.Problems)
	if a.Advice+a.Command+a.Runbook != "" {
		d.put(`<div class="note">%s`, when(a.Available(), a.Cause))
		d.help(a)
		d.put(`</div>`)
	}
	d.put(`<dl class="facts">
<div><dt>Group priority</dt><dd>%s</dd></div><div><dt>Version priority</dt><dd>%s</dd></div>
`, a.GroupPriority, a.VersionPriority)
	d.some(`<div><dt>The cluster sends it to</dt><dd>%s</dd></div>`, strings.TrimRight(a.Front+" "+a.FrontSays, " "))
	d.some(`<div><dt>Owner</dt><dd>%s</dd></div>`, a.Owner)
	d.some(`<div><dt>Policy</dt><dd>%s</dd></div>`, a.Policy())
	if a.MaxInFlight > 0 {
		d.put(`<div><dt>In flight</dt><dd>%s <span class="dim">of %s</span></dd></div><div><dt>Watches</dt><dd>%s <span class="dim">of %s</span></dd></div>`,
			a.InFlight, a.MaxInFlight, a.LongRunning, a.MaxLongRunning)
	}
	if t := a.Traffic; t != nil {
		most := answer.Latency(worst(t.Points))
		d.put(`<div><dt>Requests</dt><dd>%s</dd></div><div><dt>Errors</dt><dd class="%s">%s</dd></div><div><dt>Median</dt><dd>%s</dd></div><div><dt>p99</dt><dd>%s</dd></div>
</dl>
<figure><svg class="chart" viewBox="0 0 600 80" preserveAspectRatio="none" role="img" aria-label="99th percentile of the last ten minutes, up to %s"><path d="%s"/></svg>
<figcaption class="dim"><span>ten minutes ago</span><span>p99, up to %s</span><span>now</span></figcaption></figure>
`, answer.Rate(t.Rate), when(t.Errors > 0, "bad"), answer.Rate(t.Errors), answer.Latency(t.P50), answer.Latency(t.P99), most, spark(t.Points, 600, 80), most)
	} else {
		d.put(`</dl>`)
	}
	d.put(`</section>`)
}

func (d *document) endpoints(now time.Time, a *answer.APIService) {
	d.put(`<section id="endpoints" data-live aria-labelledby="endpoints-title"><h2 id="endpoints-title">Endpoints of %s</h2>
`, a.Service)
	if len(a.Endpoints) == 0 {
		d.put(`<p class="dim">none</p></section>`)
		return
	}
	d.put(`<div class="card flush" tabindex="0" role="region" aria-labelledby="endpoints-title"><table><thead><tr><th scope="col">Address</th><th scope="col">Health</th><th scope="col" class="n">For</th><th scope="col" class="n">In flight</th><th scope="col">Last hour</th><th scope="col">Last probe</th></tr></thead><tbody>
`)
	for _, e := range a.Endpoints {
		d.put(`<tr><th scope="row">%s</th><td data-label="Health">`, e.Address)
		d.health(&e)
		d.some(` <span class="sub">last %s</span>`, e.GoAway)
		d.some(` <span class="warn">%s</span>`, when(e.Slow, "slow"))
		d.some(` <span class="warn">%s</span>`, when(e.Terminating, "terminating"))
		d.put(`</td><td class="n" data-label="For">%s</td><td class="n" data-label="In flight">%s</td><td class="wide" data-label="Last hour">`, answer.Ago(now, e.Since), e.InFlight)
		d.timeline(now, &e)
		d.put(`</td><td class="wide" data-label="Last probe">`)
		d.probe(now, &e)
		d.put(`</td></tr>`)
	}
	d.put(`</tbody></table></div></section>`)
}

// probe puts an endpoint's last probe: when, how long, and its result.
func (d *document) probe(now time.Time, e *answer.Endpoint) {
	if e.Probed.IsZero() {
		d.put(`<span class="dim">none yet</span>`)
		return
	}
	d.put(`%s ago, took %s, %s`, answer.Ago(now, e.Probed), answer.Latency(e.ProbeSeconds), cmp.Or(when(e.ProbeError != "", "failed"), "passed"))
	d.some(`<span class="sub">%s</span>`, Brief(e.ProbeError))
}

// timeline draws an endpoint's health in the last hour, the newest at the right edge.
func (d *document) timeline(now time.Time, e *answer.Endpoint) {
	const width = 120
	fell := 0
	for _, c := range e.Changes {
		if c.Health == "unhealthy" && now.Sub(c.Time) < time.Hour {
			fell++
		}
	}
	d.put(`<svg class="timeline" viewBox="0 0 120 12" preserveAspectRatio="none" role="img" aria-label="%s now, became unhealthy %s times in the last hour">`, e.Health, fell)
	end := float64(width)
	for i := len(e.Changes) - 1; i >= 0 && end > 0; i-- {
		c := &e.Changes[i]
		at := max(width*(1-now.Sub(c.Time).Hours()), 0)
		d.put(`<rect class="%s" x="%s" width="%s" height="12"><title>%s from %s</title></rect>`,
			c.Health, fmt.Sprintf("%.1f", at), fmt.Sprintf("%.1f", end-at), c.Health, stamp(now, c.Time))
		end = at
	}
	d.put(`</svg>`)
}

// documents puts how current the APIService's parts of the merged documents are.
func (d *document) documents(now time.Time, a *answer.APIService) {
	d.put(`<section id="documents" data-live aria-labelledby="documents-title"><h2 id="documents-title">Documents</h2>
<ul class="plain">`)
	if s := a.Discovery; s != nil {
		d.put(`<li><b>Discovery</b> %s resources`, s.Resources)
		d.some(`, <span class="bad">%s</span>`, when(s.Stale, "stale"))
		d.confirmed(now, &s.Freshness)
	} else {
		d.put(`<li class="dim">no discovery of its own</li>`)
	}
	if s := a.OpenAPI; s != nil {
		d.put(`<li><b>OpenAPI</b> %sv2, %sv3`, when(!s.V2, "no "), when(!s.V3, "no "))
		d.some(`, <span class="warn">claims %s</span>`, strings.Join(s.Foreign, ", "))
		d.confirmed(now, &s.Freshness)
	}
	d.put(`</ul></section>`)
}

// confirmed ends the line of a document.
func (d *document) confirmed(now time.Time, f *documents.Freshness) {
	d.put(`, %s`, cmp.Or(when(f.Confirmed.IsZero(), "never confirmed"), "confirmed "+answer.Ago(now, f.Confirmed)+" ago"))
	d.some(` <span class="warn">%s</span>`, f.Reason)
	d.put(` <span class="dim">%s</span></li>`, f.Message)
}

// trust puts the CAs that verify the backend, and the certificates that it presents.
func (d *document) trust(now time.Time, a *answer.APIService) {
	d.put(`<section id="trust" data-live aria-labelledby="trust-title"><h2 id="trust-title">Trust</h2>
<ul class="plain"><li><b>TLS name</b> <code>%s</code></li>`, a.ServerName)
	if s := a.Trust; s != nil {
		d.put(`<li><b>Source</b> %s`, s.Source)
		d.some(` <span class="bad">%s</span>`, s.Fault)
		d.some(` <span class="warn">%s</span>`, s.Warning)
		d.some(` <span class="warn">an endpoint still needs the replaced CA, which is trusted until %s</span>`, when(s.OverlapInForce, s.OverlapUntil.UTC().Format(time.TimeOnly)))
		d.put(`</li>`)
		for _, c := range s.CAs {
			d.certificate(now, "CA", &c)
		}
		for _, c := range s.Leaves {
			d.certificate(now, "Leaf", &c)
		}
	}
	d.put(`</ul></section>`)
}

func (d *document) certificate(now time.Time, kind string, c *trust.Certificate) {
	d.put(`<li><b>%s</b> %s <span class="%s">%s</span>`, kind, c.Subject, answer.Urgency(now, c.NotAfter), answer.Left(now, c.NotAfter))
	d.some(`<span class="dim">, %s</span>`, when(c.Live, "in use"))
	d.some(`<span class="bad">, %s</span>`, when(c.Refused, "refused"))
	d.put(`</li>`)
}
