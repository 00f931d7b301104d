package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// consoleDoor serves a door whose only backend runs h. Requests begin with the returned URL.
func consoleDoor(t *testing.T, h http.HandlerFunc, args ...string) (d *server, stop func(), url string) {
	t.Helper()
	s := serverAt(t, "127.0.0.1", h)
	d = aloneDoor(t, append(args, "--authorization-mode=AlwaysAllow", "--anonymous-auth")...)
	d.claim(t, "consoles.example.com", s.URL)
	return d, d.start(t), urlOf(d.ports.front) + "/apis/consoles.example.com/v1/consoles/"
}

// A drain ends the sessions that are open, and the logs have the end of each.
func TestDrainRecordsSessions(t *testing.T) {
	const sessions = 50
	dir := t.TempDir()
	policy := writeFile(t, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n")
	d, stop, url := consoleDoor(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}, "--access-log="+filepath.Join(dir, "access.log"), "--audit-log-path="+filepath.Join(dir, "audit.log"), "--audit-policy-file="+policy)
	c := clientOf(t, false, nil)
	open := func() int {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"a/open", nil))(t)
		r.Header = http.Header{"Connection": {"upgrade"}, "Upgrade": {"websocket"}}
		res := must.Get(c.Do(r))(t)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.StatusCode
	}
	must.Soon(t, 20*time.Second, "the first session", func() bool { return open() == http.StatusSwitchingProtocols })
	for range sessions - 1 {
		check.Same(t, http.StatusSwitchingProtocols, open(), "status")
	}
	stop()
	must.Do(t, d.closeRecords())
	for name, line := range map[string]string{"access.log": `"status":101,`, "audit.log": `"code":101}`} {
		check.Same(t, sessions, strings.Count(string(must.Get(os.ReadFile(filepath.Join(dir, name)))(t)), line), "sessions in %s", name)
	}
}

// During a drain, a client that chooses among replicas sees that this one is not ready. With
// --shutdown-send-retry-after, new requests are asked to come back while others are still under
// way; with a grace period, watches continue. --max-requests-inflight limits reads, and no writes.
func TestDrainRejectsNew(t *testing.T) {
	came, over := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(over) })
	d, stop, url := consoleDoor(t, func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			came <- struct{}{}
			<-over
		}
	}, "--shutdown-send-retry-after", "--max-requests-inflight=1", "--shutdown-watch-termination-grace-period=1m")
	t.Cleanup(release) // before the backend ends
	c := clientOf(t, true, nil)
	get := func(method, url string) string {
		reply, err := ask.Do(t.Context(), c, method, url, nil, "")
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(fmt.Sprint(reply.Code, " ", reply.Header.Get("Retry-After")))
	}
	ready := func() bool { return get(http.MethodGet, urlOf(d.ports.admin)+"/readyz") == "200" }
	must.Soon(t, 20*time.Second, "it is ready", func() bool { return get(http.MethodGet, url+"a") == "200" && ready() })
	slow := make(chan string, 2)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		go func() { slow <- get(method, url+"slow") }()
		<-came
	}
	check.Same(t, "429 1", get(http.MethodGet, url+"a"), "a read more than the limit")
	check.Same(t, "200", get(http.MethodPost, url+"a"), "a second write")
	watch := must.Get(ask.Open(t.Context(), c, urlOf(d.ports.front)+"/apis/apiregistration.k8s.io/v1/apiservices?watch=1", nil))(t)
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, watch.Body); ended <- err }()
	go stop()
	must.Soon(t, 20*time.Second, "new requests are rejected", func() bool { return get(http.MethodPost, url+"a") == "429 5" && !ready() })
	release()
	for range 2 {
		check.Same(t, "200", <-slow, "a request under way")
	}
	check.Same(t, 0, len(ended), "watches that have ended")
	must.Do(t, watch.Body.Close())
	<-ended
	stop()
}

// If one port cannot be opened, the start fails and closes the other.
func TestFailedStartClosesItsPort(t *testing.T) {
	there := aloneDoor(t)
	o := *there.o
	o.adminPort = there.ports.admin.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	address := there.ports.front.Addr().String()
	o.front.Port = there.ports.front.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // likewise
	must.Do(t, there.ports.front.Close())
	_, err := build(t.Context(), newProcess(&o, slog.New(slog.DiscardHandler)))
	check.Fault(t, "address already in use", err, "two doors on one port")
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the front port is still open")
	}
}

// fill holds n connections to a port. They ask for nothing, so that no log has anything of them.
func fill(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		conn := must.Get(net.Dial("tcp", address))(t)
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// A loop that does not end, because a plugin hangs, delays the end of this process by a bound, and hides no fault.
func TestLoopThatDoesNotEnd(t *testing.T) {
	p := newProcess(nil, slog.New(slog.DiscardHandler))
	fault, stopped := errors.New("listening"), make(chan struct{})
	close(stopped)
	for _, tt := range []struct {
		loops       time.Duration
		cause, want error
	}{{0, nil, fault}, {lastWait - time.Second, nil, fault}, {time.Hour, nil, nil}, {time.Hour, fault, fault}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(tt.cause)
			begun := time.Now()
			err := p.ended(ctx, func() error { <-time.After(tt.loops); return fault }, stopped)
			check.Same(t, true, errors.Is(err, tt.want), "loops that end after %v, with %v: %v, want %v", tt.loops, tt.cause, err, tt.want)
			check.Same(t, min(tt.loops, lastWait), time.Since(begun), "the delay")
			<-time.After(tt.loops) // a bubble waits for its goroutines
		})
	}
}

// Why this process ends by itself is told before the drain, which may take minutes, or be cut short.
func TestFailedLoopIsToldAtOnce(t *testing.T) {
	d := aloneDoor(t)
	var log logbook.Book
	d.log = slog.New(slog.NewTextHandler(&log, nil))
	d.loops["wheel"] = func(context.Context) error { return errors.New("broken") }
	check.Fault(t, "running wheel: broken", d.serve(t.Context()), "serve")
	head, _, _ := strings.Cut(log.String(), "draining")
	check.Has(t, head, "running wheel: broken")
}

// Without a delay, too, a replica is no endpoint of the cluster any more when its port closes. A check says whether it
// can be published.
func TestDrainLeavesEndpointsFirst(t *testing.T) {
	d := doorBefore(t, "https://127.0.0.1:1", "--publish-kubernetes-endpoints", "--advertise-address=192.0.2.1")
	check.Has(t, fmt.Sprint(d.needs.List()), "{entrypoint unknown ")
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		d.drain()
		check.Same(t, 2*time.Second, time.Since(begun), "the time until it is drained")
	})
}
