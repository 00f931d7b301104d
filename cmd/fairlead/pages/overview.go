package pages

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

func (d *document) overview(v *view) {
	d.begin(fmt.Sprintf("Fairlead: %d unavailable", len(v.Unavailable())), "")
	d.put(`<a class="skip" href="#table">Skip to the table</a>
<header>
<p class="brand">Fairlead <span class="dim">%s%s</span></p>
<p class="dim"><span id="live" role="status">not live</span> · %s · <a href="busiest/">busiest callers</a> · <a href="status">JSON</a></p>
</header>
<main>`, v.Replica, when(v.Cluster != "", " in cluster ")+v.Cluster, v.Version)
	d.summary(v)
	d.search(v)
	d.remotes(v)
	d.question(v)
	d.transitions(v.Time, v.Transitions)
	d.put(`<section id="rules" data-live aria-label="Rules of the policy">`)
	d.some(`<h2>%s</h2>`, when(len(v.Rules) > 0, "Rules of the policy"))
	for _, r := range v.Rules {
		d.put(`<p class="%s">%s</p>`, cmp.Or(when(r.Refused > 0, "warn"), "dim"), r)
	}
	d.put(`</section>
<div class="two">`)
	d.localServers(v)
	d.certificates(v)
	d.put(`</div>`)
}

func (d *document) summary(v *view) {
	rate, errors, inFlight := 0., 0., int64(0) // per second, of them answered with 5xx, and with watches
	for _, a := range v.Remotes() {
		t := cmp.Or(a.Traffic, &answer.Traffic{})
		rate, errors, inFlight = rate+t.Rate, errors+t.Errors, inFlight+a.InFlight+a.LongRunning
	}
	servers := cmp.Or(when(len(v.LocalServers) > 0, fmt.Sprintf("%d of %d", v.LocalHealthy(), len(v.LocalServers))), "none")
	ready := map[bool][2]string{true: {"ok", "ready"}, false: {"bad", "not ready"}}[v.Ready == ""]
	d.put(`<section id="summary" data-live aria-label="Summary">
<h1 class="%s">%s</h1>
<dl class="facts">
<div><dt>This replica</dt><dd><span class="%s">%s</span></dd></div>
<div><dt>Up</dt><dd>%s</dd></div>
<div><dt>Requests</dt><dd>%s</dd></div>
<div><dt>In flight</dt><dd>%s</dd></div>
<div><dt>Errors</dt><dd class="%s">%s</dd></div>
<div><dt>Local apiservers</dt><dd class="%s">%s</dd></div>
</dl>
`, when(len(v.Unavailable()) > 0 || v.Ready != "", "bad"), v.Headline(), ready[0], ready[1], answer.Ago(v.Time, v.Started), answer.Rate(rate), inFlight, when(errors > 0, "bad"), answer.Rate(errors),
		when(v.LocalHealthy() < len(v.LocalServers), "bad"), servers)
	d.some(`<p class="note bad">This replica takes no requests: %s</p>`, v.Ready)
	for _, c := range v.Failing() {
		d.put(`<p class="note bad">%s%s: %s`, when(c.Users != "", c.Users+". "), c.Name, c.Message)
		d.some(`<span class="sub">%s</span>`, c.Advice)
		d.some(`<code class="copy">%s</code>`, c.Command)
		d.put(`</p>`)
	}
	d.items("note bad", `<li>%s</li>`, v.Problems)
	d.items("note", `<li>%s</li>`, v.Notes)
	d.put(`<p class="dim">Other replicas: <code class="copy">kubectl fairlead status --replicas</code></p>
</section>`)
}

// question puts the box that asks where a request goes, and the explanation.
func (d *document) question(v *view) {
	d.put(`<section aria-labelledby="explain-title">
<h2 id="explain-title">Where does a request go?</h2>
<form action="./" method="get">
<label for="explain" class="hidden">Path of the request</label>
<input id="explain" name="explain" value="%s" placeholder="/apis/metrics.k8s.io/v1beta1/nodes" spellcheck="false" autocomplete="off" autocapitalize="off" maxlength="8192">
<button>Explain</button>
</form>`, v.Asked)
	if v.Explanation != nil {
		d.explanation(v.Explanation)
	}
	d.put(`</section>`)
}

func (d *document) explanation(x *answer.Explanation) {
	class, with := "ok", ""
	if x.Code != 0 {
		class, with = "bad", fmt.Sprintf(" with %d", x.Code)
	}
	d.put(`<div class="card" id="explanation">
<p><code>%s %s</code></p>
<p class="answer %s">→ %s%s`, x.Method, x.Path, class, x.Outcome(), with)
	d.some(` <span class="dim">timeout %s</span>`, x.Timeout)
	d.put(`</p>`)
	d.some(`<p class="bad">%s</p>`, x.Message)
	d.some(`<p class="bad"><b>Cause</b> %s</p>`, x.Cause)
	d.some(`<p><b>Advice</b> %s</p>`, x.Advice)
	d.put(`<ol>`)
	for _, step := range x.Why {
		d.put(`<li>%s</li>`, step)
	}
	d.put(`</ol>`)
	if as := x.Identity; as != nil {
		d.put(`<p class="dim">As %s, %s%s</p>`, as.User, as.How, when(len(as.Headers) > 0, ":"))
		d.items("plain", `<li><code>%s</code></li>`, as.Headers)
	}
	d.put(`</div>`)
}

// remotes puts the table of APIServices, and below it those that the local apiserver serves.
func (d *document) remotes(v *view) {
	d.put(`<section id="remotes" data-live aria-labelledby="table-title">`)
	if rows := v.rows(); len(rows) > 0 {
		d.turn(&v.List)
		d.put(`<div class="card flush" tabindex="0" role="region" aria-labelledby="table-title">
<table id="table"><caption class="hidden">APIServices of extension servers, broken ones first</caption>
<thead><tr><th scope="col">Name</th><th scope="col">Verdict</th><th scope="col" class="n">For</th><th scope="col" class="n">Endpoints</th><th scope="col" class="n">In flight</th><th scope="col" class="n">Requests</th><th scope="col" class="n">Errors</th><th scope="col" class="n">p99</th><th scope="col">Ten minutes</th><th scope="col" class="n">Discovery</th><th scope="col" class="n">Certificate</th></tr></thead>
<tbody>`)
		for _, a := range rows {
			d.row(v, a)
		}
		d.put(`</tbody>
</table>
</div>`)
	} else if v.List.Query != "" {
		d.turn(&v.List)
		d.put(`<p id="table" class="dim">No match.</p>`)
	} else {
		d.put(`<p id="table" class="dim">There are none: everything is served by the local apiserver.</p>`)
	}
	if locals := v.Those(func(a *answer.APIService) bool { return a.Kind == "local" }); len(locals) > 0 {
		d.put(`<details id="locals"><summary>%s served by the local apiserver</summary>
<ul class="chips">`, len(locals))
		for _, a := range locals {
			d.put(`<li><a href="apiservice/%s">%s</a></li>`, url.PathEscape(a.Name), a.Name)
		}
		d.put(`</ul></details>`)
	}
	d.put(`</section>`)
}

func (d *document) row(v *view, a *answer.APIService) {
	d.put(`<tr>
<th scope="row"><a href="apiservice/%s">%s</a><span class="sub">%s</span>`, url.PathEscape(a.Name), a.Name, a.Service)
	d.some(`<span class="sub">owner %s</span>`, a.Owner)
	d.some(`<span class="sub">%s</span>`, a.Policy())
	d.put(`</th>
<td data-label="Verdict">`)
	d.state(a)
	d.some(` <span class="warn">%s times in an hour</span>`, when(a.Flaps > 1, fmt.Sprint(a.Flaps)))
	if a.Available() {
		if a.Discovery != nil {
			d.some(`<span class="sub warn">discovery: %s</span>`, a.Discovery.Reason)
		}
		if a.OpenAPI != nil {
			d.some(`<span class="sub warn">OpenAPI: %s</span>`, a.OpenAPI.Reason)
		}
	}
	for _, p := range a.Problems {
		if p != a.Verdict.Message {
			d.put(`<span class="sub warn">%s</span>`, p)
		}
	}
	d.put(`</td>
<td class="n" data-label="For">%s</td>
<td class="n%s" data-label="Endpoints">%s/%s</td>
<td class="n" data-label="In flight">%s<span class="sub">%s watches</span></td>
`, answer.Ago(v.Time, a.Verdict.Since), cmp.Or(when(a.Healthy() == 0 && !a.Available(), " bad"), when(a.Healthy() < len(a.Endpoints), " warn")), a.Healthy(), len(a.Endpoints), a.InFlight, a.LongRunning)
	if t := a.Traffic; t != nil {
		d.put(`<td class="n" data-label="Requests">%s</td>
<td class="n %s" data-label="Errors">%s</td>
<td class="n" data-label="p99">%s</td>
<td class="wide" data-label="Ten minutes"><svg class="spark" viewBox="0 0 120 24" preserveAspectRatio="xMinYMid" role="img" aria-label="99th percentile of the last ten minutes, up to %s"><path d="%s"/></svg><span class="sub">to %s</span></td>
`, answer.Rate(t.Rate), when(t.Errors > 0, "bad"), answer.Rate(t.Errors), answer.Latency(t.P99), answer.Latency(worst(t.Points)), spark(t.Points, 120, 24), answer.Latency(worst(t.Points)))
	} else {
		d.put(`<td class="n" data-label="Requests"><span class="dim">–</span></td>
<td class="n" data-label="Errors"><span class="dim">–</span></td>
<td class="n" data-label="p99"><span class="dim">–</span></td>
<td class="wide empty" data-label="Ten minutes"></td>`)
	}
	d.put(`<td class="n" data-label="Discovery">`)
	switch s := a.Discovery; {
	case s == nil:
		d.put(`<span class="dim">–</span>`)
	case s.Confirmed.IsZero():
		d.put(`<span class="warn">never</span>`)
	default:
		d.put(`<span class="%s">%s</span>`, when(s.Reason != "", "warn"), answer.Ago(v.Time, s.Confirmed))
	}
	d.put(`</td>
<td class="n" data-label="Certificate"><span class="%s">%s</span></td></tr>
`, answer.Urgency(v.Time, a.Expires()), answer.Left(v.Time, a.Expires()))
	if cause := cmp.Or(a.Cause, when(!a.Available(), a.Why())); cause != "" {
		d.put(`<tr class="help"><td class="wide" colspan="11"><span class="%s">%s</span>`, cmp.Or(when(a.Verdict.Status == "False" && a.Maintenance == "", "bad"), "warn"), cause)
		d.help(a)
		d.put(`</td></tr>`)
	}
}

func (d *document) localServers(v *view) {
	d.put(`<section id="locals-health" data-live aria-labelledby="local-title">
<h2 id="local-title">Local apiservers</h2>
<ul class="plain">`)
	for _, e := range v.LocalServers {
		d.put(`<li><code>%s</code> `, e.Address)
		d.health(&e)
		d.put(` <span class="dim">probed </span>`)
		d.probe(v.Time, &e)
		d.put(`, %s, %s client connections`, cmp.Or(e.Release, "release unknown"), e.Clients)
		d.some(`; another one lacks %s`, strings.Join(e.Only, ", "))
		d.put(`</li>`)
	}
	if len(v.LocalServers) == 0 {
		d.put(`<li class="dim">none</li>`)
	}
	d.put(`</ul>
</section>`)
}

func (d *document) certificates(v *view) {
	d.put(`<section id="certificates" data-live aria-labelledby="certificates-title">
<h2 id="certificates-title">Certificates of this replica</h2>
<ul class="plain">`)
	for _, s := range v.Certificates {
		d.put(`<li><b>%s</b>`, s.Use)
		for _, c := range s.Certificates {
			d.put(` <span>%s <span class="%s">%s</span></span>`, c.Subject, answer.Urgency(v.Time, c.NotAfter), answer.Left(v.Time, c.NotAfter))
		}
		d.some(` <span class="bad">%s</span>`, s.Err)
		d.put(`<span class="sub"><code>%s</code></span></li>`, s.Source)
	}
	d.put(`</ul>
</section>`)
}
