//go:build e2e

package operate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
		check.Same(t, true, named >= 10, "%d controls", named)
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
		dark := b.eval(t, back)
		check.Same(t, true, dark != light, "the dark background is the light one: %v", dark)
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
		must.Be(t, b.eval(t, reached+` && getComputedStyle(document.activeElement).outlineStyle !== 'none'`) == true, "Tab does not reach the row, or the focus is invisible")
		b.press(t, "Enter", "\r", 13)
		b.until(t, `location.pathname.endsWith('/apiservice/v1.shown.example.com') && document.body.innerText.includes('shown.operate.svc')`)
		b.shoot(t, "detail")
	})
	t.Run("policy", func(t *testing.T) {
		check.Same(t, 0, len(b.findings), "what the browser reports: %s", strings.Join(b.findings, "\n"))
		b.eval(t, `new Promise(done => { const s = document.createElement('script'); s.textContent = 'window.evil = 1'; document.body.append(s); setTimeout(done, 100) })`)
		check.Same[any](t, true, b.eval(t, `window.evil === undefined`), "no injected script runs")
	})
}

// browser is a page of a real, headless Chromium, controlled by the DevTools protocol. Only one goroutine may use it.
type browser struct {
	conn     *websocket.Conn
	next     int
	findings []string // messages of the page's console and security policy
}

func newBrowser(t *testing.T, w *world) *browser {
	t.Helper()
	_, port, _ := strings.Cut(freeAddress(t), ":")
	var targets []struct{ Type, WebSocketDebuggerURL string }
	page := 0
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "chromium", Path: "chromium",
		Args: []string{
			"--headless=new", "--no-sandbox", // the tests run as root; it opens only our own page
			"--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
			"--remote-debugging-port=" + port, "--remote-allow-origins=*", "--user-data-dir=" + t.TempDir(), "about:blank",
		},
		Ready: func(ctx context.Context) error {
			err := ask.JSON(ctx, "http://127.0.0.1:"+port+"/json/list", &targets)
			for page = range targets {
				if targets[page].Type == "page" {
					return nil
				}
			}
			return fmt.Errorf("there is no page yet: %w", err)
		},
	}))(t)
	conn, _, err := websocket.DefaultDialer.DialContext(t.Context(), targets[page].WebSocketDebuggerURL, nil)
	must.Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	b := &browser{conn: conn}
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(t, domain+".enable", nil, nil)
	}
	return b
}

// call sends a command and decodes its answer, unless into is nil. Meanwhile it records events.
func (b *browser) call(t *testing.T, method string, params map[string]any, into any) {
	t.Helper()
	b.next++
	must.Do(t, b.conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	must.Do(t, b.conn.WriteJSON(map[string]any{"id": b.next, "method": method, "params": params}))
	for {
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		must.Do(t, b.conn.ReadJSON(&m))
		switch {
		case m.Method == "Log.entryAdded" || m.Method == "Runtime.exceptionThrown":
			b.findings = append(b.findings, string(m.Params))
		case m.ID != b.next:
		case m.Error != nil && !strings.Contains(m.Error.Message, "navigated"): // which means that the browser left the page before the answer
			t.Fatalf("%s: %s", method, m.Error.Message)
		default:
			if m.Error == nil && into != nil {
				must.Do(t, json.Unmarshal(m.Result, into))
			}
			return
		}
	}
}

func (b *browser) eval(t *testing.T, expression string) any {
	t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	b.call(t, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		t.Fatalf("%s: %s", expression, r.ExceptionDetails.Text)
	}
	return r.Result.Value
}

func (b *browser) until(t *testing.T, expression string) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, expression, func() (bool, string) {
		// It never throws: while the browser leaves a page, parts of it are gone.
		return b.eval(t, "(() => { try { return "+expression+" } catch (e) { return false } })()") == true, fmt.Sprint(b.eval(t, "document.body?.innerText.slice(0, 1500)"), b.findings)
	})
}

func (b *browser) open(t *testing.T, url string) {
	t.Helper()
	b.call(t, "Page.navigate", map[string]any{"url": url}, nil)
	b.until(t, fmt.Sprintf("location.href === %q && document.readyState === 'complete'", url))
}

func (b *browser) size(t *testing.T, width, height int) {
	t.Helper()
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
}

func (b *browser) press(t *testing.T, key, text string, code int) {
	t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call(t, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}, nil)
	}
}

// enter types text into a field, and Enter.
func (b *browser) enter(t *testing.T, field, text string) {
	t.Helper()
	b.eval(t, fmt.Sprintf(`document.getElementById(%q).focus()`, field))
	b.call(t, "Input.insertText", map[string]any{"text": text}, nil)
	b.press(t, "Enter", "\r", 13)
}

func (b *browser) shoot(t *testing.T, name string) {
	t.Helper()
	var r struct{ Data string }
	// A WebP picture has at most 16,383 pixels each way. A list of all that other cases register is longer.
	all := b.eval(t, `({x: 0, y: 0, width: document.documentElement.scrollWidth, height: Math.min(document.documentElement.scrollHeight, 4000), scale: 1})`)
	b.call(t, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "format": "webp", "quality": 60, "clip": all}, &r)
	picture := must.Get(base64.StdEncoding.DecodeString(r.Data))(t)
	check.Same(t, true, len(picture) >= 5000, "%s: a picture of %d bytes shows nothing", name, len(picture))
	must.Do(t, os.WriteFile(filepath.Join(t.ArtifactDir(), name+".webp"), picture, 0o600))
}
