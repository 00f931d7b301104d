//go:build e2e

package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// The APIs of a door: others is what innocent users ask, target what attacks ask.
const (
	others = "/apis/others.example.com/v1/namespaces/default/widgets"
	target = "/apis/target.example.com/v1/namespaces/default/widgets"
)

// othersTake is how long the innocents' backend takes, as real ones do. Without it their latency would be that of the machine's scheduler.
const othersTake = 10 * time.Millisecond

// door is one Fairlead over a directory, with one extension server for innocent users and one that is attacked through it, or attacks.
type door struct {
	w              *world
	registry       string
	front, admin   string // host:port
	others, target *extension.Server
	log            *logbook
	root           *http.Client // of system:masters
	process        *os.Process
	stop           func() error // ends it as systemd would, and returns how it ended
}

// open starts a door where every authenticated user may do everything, and waits until it serves.
func (w *world) open(t *testing.T, args ...string) *door {
	t.Helper()
	d := &door{w: w, registry: t.TempDir()}
	d.others, d.target = w.extension(t, "others", "others.example.com/v1", -1), w.extension(t, "target", "target.example.com/v1", 0)
	put(t, d.registry, "others.yaml", w.manifest("others", "others.example.com", d.others.Addr(), ""))
	put(t, d.registry, "target.yaml", w.manifest("target", "target.example.com", d.target.Addr(), ""))
	if err := d.others.Set(extension.Fault{Kind: extension.Slow, Delay: othersTake, Path: others}); err != nil {
		t.Fatal(err)
	}
	d.start(t, w.bin, args...)
	for _, path := range []string{others, target} {
		d.serves(t, path)
	}
	return d
}

// serves waits until a path is answered well.
func (d *door) serves(t *testing.T, path string) {
	t.Helper()
	eventually(t, time.Minute, "serving "+path, func() (bool, string) {
		status, body := d.ask(t, d.root, "https://"+d.front+path+"?limit=1")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.log)
	})
}

// start runs a program as fairlead serve: fairlead itself, or one that becomes it.
func (d *door) start(t *testing.T, program string, args ...string) {
	t.Helper()
	ports := freePorts(t, 2)
	d.front, d.admin, d.log = "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], &logbook{}
	all := []string{
		"serve", "--registry=dir:" + d.registry, "--bind-address=127.0.0.1", "--secure-port=" + ports[0], "--admin-secure-port=" + ports[1],
		"--client-ca-file=" + writePEM(t, d.w.clients), "--authorization-mode=AlwaysAllow",
	}
	all = append(all, files(t, d.w.servers.Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}}), "--tls-cert-file", "--tls-private-key-file")...)
	all = append(all, files(t, d.w.fronts.Issue(pki.Leaf{CommonName: "front-proxy-client"}), "--proxy-client-cert-file", "--proxy-client-key-file")...)
	d.root = client(d.w.as("root", "system:masters"), "h2")
	cmd := exec.Command(program, append(all, args...)...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.process = cmd.Process
	d.stop = sync.OnceValue(func() error {
		d.root.CloseIdleConnections()
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already, which Wait tells
		late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Errorf("fairlead ended: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", d.log)
		}
	})
}

// ask returns what was answered, status 0 when nothing was.
func (d *door) ask(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// metric is the sum of the series that begin with a text; there must be one.
func (d *door) metric(t *testing.T, begin string) float64 {
	t.Helper()
	_, text := d.ask(t, d.root, "https://"+d.admin+"/metrics")
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, begin); ok && rest[0] != '_' {
			fields := strings.Fields(rest)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			if err != nil {
				t.Fatalf("reading %q: %v", line, err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		t.Fatalf("no metric begins with %s:\n%.2000s", begin, text)
	}
	return sum
}

// logbook is a log as it grows.
type logbook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
