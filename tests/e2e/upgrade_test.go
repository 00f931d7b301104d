//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// open opens a WebSocket on a subresource of a widget, as virtctl does for a virtual machine, and
// returns the request that arrived.
func (q *quay) open(t *testing.T, e cluster.Endpoint, cred cluster.Credentials, subresource string, protocols ...string) (*websocket.Conn, *extension.Request) {
	t.Helper()
	marker := "marker=" + strconv.FormatInt(q.count.Add(1), 10) + "-"
	header := http.Header{}
	if cred.Token != "" {
		header.Set("Authorization", "Bearer "+cred.Token)
	}
	dialer := websocket.Dialer{TLSClientConfig: clientTLS(t, e, cred.Pair), Subprotocols: protocols, HandshakeTimeout: 30 * time.Second}
	ws, res, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(e.URL, "https")+widgetsPath+"/widget-000/"+subresource+"?"+marker, header)
	if err != nil {
		t.Fatalf("opening a WebSocket: %v, %v", err, res)
	}
	t.Cleanup(func() { _ = ws.Close() })
	return ws, q.received(marker)
}

func echoes(t *testing.T, ws *websocket.Conn, message []byte) {
	t.Helper()
	must.Do(t, ws.WriteMessage(websocket.BinaryMessage, message))
	_ = ws.SetReadDeadline(time.Now().Add(30 * time.Second)) // far more than an echo takes
	kind, got, err := ws.ReadMessage()
	if err != nil || kind != websocket.BinaryMessage || !bytes.Equal(got, message) {
		t.Fatalf("received %d bytes of kind %d, sent %d: %v", len(got), kind, len(message), err)
	}
}

// testStreams keeps sessions open for longer than the limit of requests: an idle console, and a
// busy screen.
func testStreams(t *testing.T, q *quay) {
	const lifetime = 65 * time.Second
	for _, by := range []struct {
		name string
		cred cluster.Credentials
	}{{"certificate", q.Admin()}, {"token", q.StaticToken("alice")}} {
		t.Run("an idle console by "+by.name, func(t *testing.T) {
			t.Parallel()
			ws, _ := q.open(t, q.server, by.cred, "console", "plain.kubevirt.io")
			if got := ws.Subprotocol(); got != "plain.kubevirt.io" {
				t.Errorf("subprotocol %q", got)
			}
			echoes(t, ws, []byte("login: "))
			<-time.After(lifetime)
			echoes(t, ws, []byte("still there?"))
		})
		t.Run("a busy screen by "+by.name, func(t *testing.T) {
			t.Parallel()
			ws, _ := q.open(t, q.server, by.cred, "vnc", "plain.kubevirt.io")
			frame := rubbish(64 << 10)
			tick := time.NewTicker(50 * time.Millisecond) // twenty pictures a second
			defer tick.Stop()
			for begun := time.Now(); time.Since(begun) < lifetime; <-tick.C {
				echoes(t, ws, frame)
			}
		})
	}
}

// testWebSocketToken sends the token as a subprotocol, as browsers do. It authenticates the user
// and is not forwarded.
func testWebSocketToken(t *testing.T, q *quay) {
	token := q.StaticToken("alice").Token
	protocols := []string{tokenProtocol(token), "plain.kubevirt.io"}
	ws, here := q.open(t, q.server, cluster.Credentials{}, "console", protocols...)
	echoes(t, ws, []byte("hello"))
	_, past := q.open(t, q.EndpointOf(0), cluster.Credentials{}, "console", protocols...)
	expected := identity(past)
	if !q.uids {
		delete(expected, "x-remote-uid")
	}
	if diff := cmp.Diff(expected, identity(here)); diff != "" {
		t.Errorf("identity (- by kube-apiserver, + here):\n%s", diff)
	}
	if got := here.Header.Values("Sec-Websocket-Protocol"); fmt.Sprint(got) != "[plain.kubevirt.io]" {
		t.Errorf("subprotocols %q", got)
	}
	if ws.Subprotocol() != "plain.kubevirt.io" {
		t.Errorf("chosen subprotocol: %q", ws.Subprotocol())
	}
	for _, e := range []cluster.Endpoint{q.server, q.EndpointOf(0)} {
		dialer := websocket.Dialer{TLSClientConfig: clientTLS(t, e, cluster.Pair{}), Subprotocols: []string{tokenProtocol("not-a-token"), "plain.kubevirt.io"}}
		_, res, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(e.URL, "https")+widgetsPath+"/widget-000/console", nil)
		if err == nil || res == nil || res.StatusCode != http.StatusUnauthorized {
			t.Errorf("a bad token: %v, %v", err, res)
		}
	}
}

// testCVE20181002105 sends an upgrade that is refused, and a second request behind it.
// kube-apiserver once left the connection to the backend open for that request, with the proxy's
// identity and any user that the client claimed.
func testCVE20181002105(t *testing.T, q *quay, c *callers) {
	for _, by := range []struct {
		name, auth string
		pair       cluster.Pair
	}{
		{"certificate", "", c.dave},
		{"token", "Authorization: Bearer " + c.alice + "\r\n", cluster.Pair{}},
	} {
		for _, side := range []struct {
			name, path string
			status     int
		}{
			{"remote", widgetsPath + "/widget-000/nothing", http.StatusNotFound}, // by the extension server
			{"local", "/api/v1/namespaces/default/pods/nobody/exec?command=true&stdout=true", http.StatusForbidden},
			{"local, what does not upgrade", "/version", http.StatusOK},
		} {
			for _, protocol := range []string{"SPDY/3.1", "websocket"} {
				for _, at := range []string{"at once", "after the answer"} {
					t.Run(strings.Join([]string{side.name, protocol, at, by.name}, ", "), func(t *testing.T) {
						t.Parallel()
						name := "smuggled-" + strconv.FormatInt(q.count.Add(1), 10)
						first := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n%sConnection: Upgrade\r\nUpgrade: %s\r\n"+
							"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", side.path, by.auth, protocol)
						smuggle(t, q, by.pair, first, name, at == "at once", side.status)
					})
				}
			}
		}
	}
}

// smuggle sends first, then requests to both sides that would leave a trace.
func smuggle(t *testing.T, q *quay, pair cluster.Pair, first, name string, atOnce bool, status int) {
	t.Helper()
	d := tls.Dialer{Config: clientTLS(t, q.server, pair, "http/1.1")}
	conn := must.Get(d.DialContext(t.Context(), "tcp", strings.TrimPrefix(q.server.URL, "https://")))(t)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	body := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `"}}`
	claims := "Host: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n"
	second := fmt.Sprintf("POST /api/v1/namespaces HTTP/1.1\r\n%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", claims, len(body), body) +
		fmt.Sprintf("GET %s/%s HTTP/1.1\r\n%s\r\n", widgetsPath, name, claims)
	if atOnce {
		first += second
	}
	must.Get(io.WriteString(conn, first))(t)
	r := bufio.NewReader(conn)
	res := must.Get(http.ReadResponse(r, nil))(t)
	_, _ = io.Copy(io.Discard, res.Body) // may be cut short when the connection closes
	_ = res.Body.Close()
	if res.StatusCode != status {
		t.Errorf("the upgrade: %d, want %d", res.StatusCode, status)
	}
	if !atOnce {
		_, _ = io.WriteString(conn, second) // the connection may be closed already
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // it must be closed at once
	rest, err := io.ReadAll(r)
	if bytes.Contains(rest, []byte("HTTP/1.1 2")) {
		t.Errorf("the second request was answered: %q", rest)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && q.lane != direct { // kube-apiserver keeps it open and serves the second request, with its sender's own identity
		t.Error("the connection stays open")
	}
	if got := q.received(name); got != nil && q.lane != direct {
		t.Errorf("the extension server received %s as %v", got.Target, identity(got))
	}
	q.admin(t).fail(t, "NotFound", "", "get", "namespace", name)
}
