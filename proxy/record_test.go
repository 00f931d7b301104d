package proxy

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// lines is a writer that hands lines on.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l <- line
	}
	return len(p), nil
}

// newLog is an access log that runs until the test ends, and its lines.
func newLog(t *testing.T) (*accesslog.Log, lines) {
	t.Helper()
	seen := make(lines, 64)
	access := must.Get(accesslog.New(accesslog.Config{Writer: seen}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { _ = access.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		loop.Wait()
	})
	return access, seen
}

// TestAccessLog: every request has its line, whichever way it came and however it ended, and the
// line leads to the logs of whoever answered it.
func TestAccessLog(t *testing.T) {
	access, seen := newLog(t)
	audit := make(chan string, 64)
	w := newWorld(t, worldConfig{access: access, remote: func(w http.ResponseWriter, r *http.Request) {
		audit <- r.Header.Get("Audit-Id")
		_, _ = w.Write([]byte("seven b"))
	}})
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			target, token string
			want          map[string]any
		}{
			{remoteGV + "/widgets?secret=x", "token-of-bob", map[string]any{"verb": "list", "status": 200., "bytes": 7., "user": "bob", "apiservice": "v1.remote.example.com", "end": "complete", "tries": 1.}},
			{remoteGV + "/widgets/one", "token-of-nobody", map[string]any{"verb": "get", "status": 403., "user": "nobody", "apiservice": "v1.remote.example.com", "end": "refused-here"}},
		} {
			r := w.request(t, "GET", tc.target, nil)
			r.Header.Set("Authorization", "Bearer "+tc.token)
			w.do(t, w.httpClient(t, proto, nil), r)
			line := <-seen
			var got map[string]any
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			if took, _ := got["took"].(float64); took <= 0 {
				t.Errorf("took %v", got["took"])
			}
			if at, err := time.Parse(time.RFC3339, got["time"].(string)); err != nil || time.Since(at) > time.Minute {
				t.Errorf("%v, %v", at, err)
			}
			if tc.want["status"] == 200. {
				tc.want["endpoint"] = w.remote.Listener.Addr().String()
				waited, _ := got["waited"].(float64)
				first, _ := got["first"].(float64)
				if took := got["took"].(float64); waited <= 0 && proto == "http/1.1" || first < waited || took < first {
					t.Errorf("waited %v, first %v, took %v", waited, first, took)
				}
				if id := <-audit; id == "" || got["audit"] != id {
					t.Errorf("the backend saw %q, the log says %v", id, got["audit"])
				}
			} else {
				tc.want["bytes"] = got["bytes"]
			}
			tc.want["path"], _, _ = strings.Cut(tc.target, "?")
			tc.want["method"], tc.want["from"], tc.want["level"], tc.want["msg"] = "GET", "127.0.0.1", "INFO", "request"
			tc.want["tls"] = "TLS 1.3"
			for _, name := range []string{"took", "time", "audit", "proto", "first", "waited", "new"} {
				delete(got, name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		}
	})
	select {
	case line := <-seen:
		t.Errorf("one line too many: %s", line)
	default:
	}
}
