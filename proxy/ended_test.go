package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// TestEndings: a line says how its request has ended and how much of it came, whichever way both
// went.
func TestEndings(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		access, seen := newLog(t)
		begun := make(chan struct{}, 1)
		w := newWorld(t, worldConfig{access: access, remoteHTTP1: http1, change: annotate("request-timeout", "1s"), remote: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			switch {
			case strings.HasSuffix(r.URL.Path, "/breaks"):
				panic(http.ErrAbortHandler)
			case strings.HasSuffix(r.URL.Path, "/hangs"):
				begun <- struct{}{}
				<-r.Context().Done()
			}
		}})
		everyWay(t, func(t *testing.T, proto string) {
			c := w.httpClient(t, proto, nil)
			for _, tc := range []struct {
				name   string
				status float64
				ends   []string
				leaves bool
			}{
				{"whole", 200, []string{"complete"}, false}, {"breaks", 503, []string{"lost", "reset"}, false}, {"hangs", 504, []string{"deadline"}, false},
				{"hangs", 499, []string{"client-lost", "client-reset"}, true},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				r := w.as(t, "bob", "POST", remoteGV+"/widgets/"+tc.name, strings.NewReader("hello")).WithContext(ctx)
				if tc.leaves {
					go func() { <-begun; cancel() }() // ends with the request
				}
				if res, err := c.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
				cancel()
				line := <-seen
				if tc.name == "hangs" && !tc.leaves {
					<-begun
				}
				got := struct {
					Status, In, Waited float64
					End, Endpoint      string
				}{}
				must.Do(t, json.Unmarshal([]byte(line), &got))
				ended := false
				for _, end := range tc.ends {
					ended = ended || got.End == end
				}
				if !ended || got.In != 5 || got.Endpoint != w.remote.Listener.Addr().String() && (!http1 || tc.status == 200) {
					t.Errorf("backend over HTTP/1.1 %v, %s: %s", http1, tc.name, line)
				}
				if got.Status != tc.status && got.Status != 502 {
					t.Errorf("backend over HTTP/1.1 %v, %s: status %v, want %v", http1, tc.name, got.Status, tc.status)
				}
			}
		})
	}
}

// The line of a session has its bytes, both ways, and all of them.
func TestSessionLine(t *testing.T) {
	access, seen := newLog(t)
	w := newWorld(t, worldConfig{access: access, remote: switching})
	_, br, conn := w.raw(t, "GET "+remoteGV+"/x", websocket+"early")
	must.Get(br.Discard(len("early")))(t)
	must.Do(t, conn.Close())
	if line := <-seen; !strings.Contains(line, `"status":101,"bytes":5,"in":5,`) || !strings.Contains(line, `"endpoint":"`+w.remote.Listener.Addr().String()) {
		t.Error(line)
	}
}

// Who taps sees requests that the log leaves out, and over both protocols.
func TestTapped(t *testing.T) {
	w := newWorld(t, worldConfig{taps: true})
	r := w.as(t, "bob", "GET", "/fairlead/tap?user=bob&seconds=60", nil)
	res := must.Get(w.httpClient(t, "h2", nil).Do(r))(t)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	everyWay(t, func(t *testing.T, proto string) {
		r := w.as(t, "bob", "GET", remoteGV+"/widgets?secret=x", nil)
		w.do(t, w.httpClient(t, proto, nil), r)
		if !lines.Scan() || !strings.Contains(lines.Text(), `"user":"bob"`) || strings.Contains(lines.Text(), "secret") {
			t.Errorf("%q", lines.Text())
		}
	})
}
