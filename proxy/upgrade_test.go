package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// switching agrees to any upgrade and echoes what comes.
func switching(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		return // a token's proof
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Mine: yes\r\n\r\n", r.Header.Get("Upgrade"))
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

func TestUpgradeEchoes(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching, local: switching})
	for _, side := range []struct {
		far  *far
		path string
	}{{w.remote, remoteGV + "/namespaces/a/vms/b/console"}, {w.local, "/api/v1/namespaces/a/pods/b/exec"}} {
		for _, protocol := range []string{"websocket", "SPDY/3.1"} {
			conn := w.dialFront(t)
			must.Do(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			fmt.Fprintf(conn, "GET %s?stdin=true&x=%%zz HTTP/1.1\r\nHost: front\r\nAuthorization: Bearer token-of-bob\r\nConnection: upgrade\r\nUpgrade: %s\r\n"+
				"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\nearly", side.path, protocol)
			br := bufio.NewReader(conn)
			res := must.Get(http.ReadResponse(br, nil))(t)
			if res.StatusCode != 101 || !strings.EqualFold(res.Header.Get("Upgrade"), protocol) || res.Header.Get("X-Mine") != "yes" {
				t.Fatalf("%s: %d %v", protocol, res.StatusCode, res.Header)
			}
			in := side.far.last(t)
			if in.target != side.path+"?stdin=true&x=%zz" || in.header.Get("Sec-Websocket-Protocol") != "v5.channel.k8s.io" {
				t.Errorf("arrived as %s with %v", in.target, in.header)
			}
			if side.far == w.remote && (in.header.Get("X-Remote-User") != "bob" || in.header.Get("Authorization") != "") {
				t.Errorf("identity: %v", identityFields(in.header))
			}
			fmt.Fprint(conn, "hello")
			got := make([]byte, len("earlyhello"))
			if _, err := io.ReadFull(br, got); err != nil || string(got) != "earlyhello" {
				t.Errorf("%s: %q, %v", protocol, got, err)
			}
			conn.Close()
		}
	}
}

// The backend's word counts only if it is the protocol that was asked for.
func TestUpgradeToSomethingElse(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(io.Discard, rw)
	}})
	conn := w.dialFront(t)
	must.Do(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	fmt.Fprintf(conn, "GET %s/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", remoteGV)
	res := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d, want 502", res.StatusCode)
	}
}

func TestUpgradeWithBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	conn := w.dialFront(t)
	fmt.Fprintf(conn, "POST %s/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello", remoteGV)
	res := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	if res.StatusCode != http.StatusRequestEntityTooLarge || w.remote.count() != 0 {
		t.Errorf("status %d, %d requests arrived", res.StatusCode, w.remote.count())
	}
}

func TestSessionsEnd(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	conn := w.dialFront(t)
	fmt.Fprintf(conn, "GET %s/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-of-bob\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", remoteGV)
	br := bufio.NewReader(conn)
	must.Get(http.ReadResponse(br, nil))(t)
	fmt.Fprint(conn, "x")
	if _, err := br.ReadByte(); err != nil || w.proxy.Sessions() != 1 {
		t.Fatalf("%v, %d sessions", err, w.proxy.Sessions())
	}
	w.proxy.EndSessions()
	must.Do(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := br.ReadByte(); err == nil {
		t.Error("the session goes on")
	}
}
