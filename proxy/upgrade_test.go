package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

const websocket = "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"

// switching agrees to any upgrade and echoes what comes.
func switching(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		return // a token's proof
	}
	hijacked(func(c io.ReadWriter, r *http.Request) {
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Mine: yes\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(c, c)
	})(w, r)
}

func TestUpgradeEchoes(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching, local: switching})
	for _, side := range []struct {
		far  *far
		path string
	}{{w.remote, remoteGV + "/namespaces/a/vms/b/console"}, {w.local, "/api/v1/namespaces/a/pods/b/exec"}} {
		for _, protocol := range []string{"websocket", "SPDY/3.1"} {
			res, br, conn := w.raw(t, "GET "+side.path+"?stdin=true&x=%zz", "Connection: upgrade\r\nUpgrade: "+protocol+"\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\nearly")
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
	w := newWorld(t, worldConfig{remote: hijacked(func(c io.ReadWriter, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})})
	res, _, _ := w.raw(t, "GET "+remoteGV+"/x", websocket)
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d, want 502", res.StatusCode)
	}
}

func TestUpgradeWithBody(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	res, _, _ := w.raw(t, "POST "+remoteGV+"/x", "Content-Length: 5\r\n"+websocket+"hello")
	if res.StatusCode != http.StatusRequestEntityTooLarge || w.remote.count() != 0 {
		t.Errorf("status %d, %d requests arrived", res.StatusCode, w.remote.count())
	}
}

func TestSessionsEnd(t *testing.T) {
	w := newWorld(t, worldConfig{remote: switching})
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket)
	fmt.Fprint(conn, "x")
	if _, err := br.ReadByte(); err != nil || w.proxy.Sessions() != 1 {
		t.Fatalf("%v, %d sessions", err, w.proxy.Sessions())
	}
	w.proxy.EndSessions()
	if _, err := br.ReadByte(); err == nil {
		t.Error("the session goes on")
	}
}
