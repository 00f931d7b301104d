//go:build e2e

package operate

import (
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// testPage uses the page as people do: through kubectl proxy, in a browser.
func testPage(t *testing.T, w *world) {
	address := freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	base := "http://" + address + "/fairlead/"
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "kubectl-proxy", Path: w.kubectl, Args: []string{"--kubeconfig", w.admin, "proxy", "--port", port},
		Ready: cluster.Endpoint{URL: "http://" + address}.Serves("/fairlead/", cluster.Credentials{}),
	}))(t)
	server := w.serve(t, "shown", nil)
	must.Do(t, w.serveTwo(t, "half", "10.79.0.31", "10.79.0.32").Set(extension.Fault{Kind: extension.Dead}))
	w.load(t, w.front, widgetsOf("half"))
	b := newBrowser(t, w)
	b.size(t, 1280, 900)
	const row = `document.querySelector('a[href="apiservice/v1.shown.example.com"]').closest('tr')`
	t.Run("table", func(t *testing.T) {
		b.open(t, base)
		b.until(t, row+`?.innerText.includes('✓ Passed')`)
		b.until(t, `document.getElementById('live').textContent === 'live'`)
		b.until(t, `/ago, took [0-9.]+m?s, passed/.test(document.getElementById('locals-health').innerText)`)
		const half = `document.querySelector('a[href="apiservice/v1.half.example.com"]').closest('tr')`
		b.until(t, half+`.innerText.includes('1/2') && /[0-9]ms\b/.test(`+half+`.innerText) && `+half+`.querySelector('svg path').getAttribute('d').startsWith('M')`)
		b.until(t, `document.documentElement.scrollWidth <= document.documentElement.clientWidth`)
		b.shoot(t, "light")
	})
	t.Run("filter", func(t *testing.T) {
		b.enter(t, "q", "operate/half")
		b.until(t, `location.search.startsWith('?q=operate') && document.querySelectorAll('#table tbody th').length === 1 && document.getElementById('table').innerText.includes('v1.half.example.com')`)
		// One endpoint is dead: the page says what to look at, with a command to copy and a runbook.
		b.until(t, `document.querySelector('.help code.copy').innerText.startsWith('kubectl -n operate describe service half') && document.querySelector('.help a').href.endsWith('/FairleadEndpointDown.md')`)
		b.open(t, base)
		b.until(t, row+`?.innerText.includes('✓ Passed')`)
	})
	t.Run("names", func(t *testing.T) {
		// What a screen reader reads for each control and picture.
		var tree struct {
			Nodes []struct {
				Ignored    bool
				Role, Name struct{ Value any }
			}
		}
		b.call(t, "Accessibility.getFullAXTree", nil, &tree)
		named := 0
		for _, n := range tree.Nodes {
			switch n.Role.Value {
			case "link", "button", "textbox", "searchbox", "image", "img", "table", "search", "region":
				if named++; !n.Ignored && n.Role.Value != "search" && (n.Name.Value == nil || n.Name.Value == "") {
					t.Errorf("a %v without a name", n.Role.Value)
				}
			}
		}
		if named < 10 {
			t.Errorf("%d controls", named)
		}
	})
	t.Run("without a script", func(t *testing.T) {
		b.call(t, "Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
		b.open(t, base+"?q=shown")
		b.until(t, `document.querySelectorAll('#table tbody th').length === 1`)
		b.call(t, "Emulation.setScriptExecutionDisabled", map[string]any{"value": false}, nil)
		b.open(t, base)
		b.until(t, `document.getElementById('live').textContent === 'live'`)
	})
	t.Run("live", func(t *testing.T) {
		b.eval(t, `window.same = true`)
		must.Do(t, server.Set(extension.Fault{Kind: extension.Dead}))
		b.until(t, row+`.innerText.includes('✗ FailedDiscoveryCheck')`)
		must.Do(t, server.Set())
		b.until(t, row+`.innerText.includes('✓ Passed')`)
		b.until(t, `window.same`) // it was not reloaded
	})
	t.Run("dark", func(t *testing.T) {
		const back = `getComputedStyle(document.body).backgroundColor`
		light := b.eval(t, back)
		b.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
		if dark := b.eval(t, back); dark == light {
			t.Errorf("the dark background is the light one: %v", dark)
		}
		b.shoot(t, "dark")
	})
	t.Run("400 pixels", func(t *testing.T) {
		b.size(t, 400, 800)
		b.until(t, `document.documentElement.scrollWidth === 400`)
		b.shoot(t, "narrow")
		b.open(t, base+"apiservice/v1.half.example.com")
		// One endpoint answers, the other is dead.
		b.until(t, `/ago, took [0-9.]+m?s, passed[^]*ago, took [0-9.]+m?s, failed/.test(document.getElementById('endpoints').innerText)`)
		b.until(t, `document.querySelector('svg.chart path').getAttribute('d').startsWith('M')`)
		b.until(t, `document.documentElement.scrollWidth === 400`)
		b.size(t, 1280, 900)
		b.open(t, base)
	})
	t.Run("keyboard", func(t *testing.T) {
		b.enter(t, "explain", "/apis/shown.example.com/v1/widgets?watch=true")
		b.until(t, `document.getElementById('explanation')?.innerText.includes('long-running: none') === true`)
		reached := `document.activeElement?.getAttribute('href') === 'apiservice/v1.shown.example.com'`
		b.eval(t, `document.activeElement.blur()`)
		for range 300 { // more than there are links
			if b.eval(t, reached) == true {
				break
			}
			b.press(t, "Tab", "", 9)
		}
		if b.eval(t, reached+` && getComputedStyle(document.activeElement).outlineStyle !== 'none'`) != true {
			t.Fatal("Tab does not reach the row, or the focus is invisible")
		}
		b.press(t, "Enter", "\r", 13)
		b.until(t, `location.pathname.endsWith('/apiservice/v1.shown.example.com') && document.body.innerText.includes('shown.operate.svc')`)
		b.shoot(t, "detail")
	})
	t.Run("policy", func(t *testing.T) {
		if len(b.findings) > 0 {
			t.Errorf("the browser reports: %s", strings.Join(b.findings, "\n"))
		}
		b.eval(t, `new Promise(done => { const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s); setTimeout(done, 100) })`)
		if b.eval(t, `window.evil === undefined`) != true {
			t.Error("an injected script runs")
		}
	})
}
