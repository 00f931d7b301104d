//go:build e2e

package operate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// browser is a page of a real, headless Chromium, controlled by the DevTools protocol. Only one
// goroutine may use it.
type browser struct {
	conn     *websocket.Conn
	next     int
	findings []string // messages of the page's console and security policy
}

func newBrowser(t *testing.T, w *world) *browser {
	t.Helper()
	data := t.TempDir()
	var page string
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "chromium", Path: "chromium",
		Args: []string{
			"--headless=new", "--no-sandbox", // the tests run as root; it opens only our own page
			"--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
			"--remote-debugging-port=0", "--remote-allow-origins=*", "--user-data-dir=" + data, "about:blank",
		},
		Ready: func(ctx context.Context) (err error) { page, err = findPage(ctx, data); return err },
	}))(t)
	conn, _, err := websocket.DefaultDialer.DialContext(t.Context(), page, nil)
	must.Do(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	b := &browser{conn: conn}
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(t, domain+".enable", nil)
	}
	return b
}

// findPage returns the address of Chromium's only page.
func findPage(ctx context.Context, data string) (string, error) {
	port, err := os.ReadFile(filepath.Join(data, "DevToolsActivePort"))
	if err != nil {
		return "", err
	}
	number, _, _ := strings.Cut(string(port), "\n")
	var list []struct{ Type, WebSocketDebuggerURL string }
	if err := ask.JSON(ctx, "http://127.0.0.1:"+number+"/json/list", &list); err != nil {
		return "", err
	}
	for _, p := range list {
		if p.Type == "page" {
			return p.WebSocketDebuggerURL, nil
		}
	}
	return "", errors.New("there is no page yet")
}

// call sends a command and waits for its answer. Meanwhile it records events.
func (b *browser) call(t *testing.T, method string, params any) json.RawMessage {
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
		case m.ID == b.next && m.Error != nil && strings.Contains(m.Error.Message, "navigated"):
			return json.RawMessage("{}") // the browser left the page before the answer
		case m.ID == b.next && m.Error != nil:
			t.Fatalf("%s: %s", method, m.Error.Message)
		case m.ID == b.next:
			return m.Result
		}
	}
}

func (b *browser) eval(t *testing.T, expression string) any {
	t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	must.Do(t, json.Unmarshal(b.call(t, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}), &r))
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
	b.call(t, "Page.navigate", map[string]any{"url": url})
	b.until(t, fmt.Sprintf("location.href === %q && document.readyState === 'complete'", url))
}

func (b *browser) size(t *testing.T, width, height int) {
	t.Helper()
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
}

func (b *browser) press(t *testing.T, key string, code int) {
	t.Helper()
	text := ""
	if key == "Enter" {
		text = "\r"
	}
	b.call(t, "Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text})
	b.call(t, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code})
}

func (b *browser) shoot(t *testing.T, name string) {
	t.Helper()
	var r struct{ Data string }
	// A WebP picture has at most 16,383 pixels each way. A list of all that other cases register is
	// longer.
	all := b.eval(t, `({x: 0, y: 0, width: document.documentElement.scrollWidth, height: Math.min(document.documentElement.scrollHeight, 4000), scale: 1})`)
	must.Do(t, json.Unmarshal(b.call(t, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "format": "webp", "quality": 60, "clip": all}), &r))
	picture := must.Get(base64.StdEncoding.DecodeString(r.Data))(t)
	if len(picture) < 5000 {
		t.Errorf("%s: a picture of %d bytes shows nothing", name, len(picture))
	}
	must.Do(t, os.WriteFile(filepath.Join(t.ArtifactDir(), name+".webp"), picture, 0o600))
}
