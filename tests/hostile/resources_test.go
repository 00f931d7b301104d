//go:build e2e

package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// TestResources takes resources of the machine away from the process, checks what still works and
// what it reports, and gives them back.
func TestResources(t *testing.T) {
	w := newWorld(t)
	t.Run("descriptors", func(t *testing.T) { testDescriptors(t, w) })
	t.Run("memory limit", func(t *testing.T) { testMemoryLimit(t, w) })
	t.Run("full disk", func(t *testing.T) { testFullDisk(t, w) })
	t.Run("nothing can be logged", func(t *testing.T) { testNoLog(t, w) })
	t.Run("stopped", func(t *testing.T) { testStopped(t, w) })
	t.Run("DNS", func(t *testing.T) { testDNS(t, w) })
}

// under starts a door from a shell that prepares something first, and then executes fairlead.
func (w *world) under(t *testing.T, prepare string, args ...string) *door {
	t.Helper()
	script := filepath.Join(t.TempDir(), "fairlead")
	must.Do(t, os.WriteFile(script, []byte("#!/bin/sh\nset -e\n"+prepare+"\nexec "+w.bin+" \"$@\"\n"), 0o700))
	other := *w
	other.bin = script
	return other.open(t, args...)
}

// served sends one request to the innocents' API on a new connection, and returns what was wrong.
func (d *door) served(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	i := d.innocents()
	defer i.client.CloseIdleConnections()
	return i.once(ctx)
}

// testDescriptors lets a stranger take all possible connections.
func testDescriptors(t *testing.T, w *world) {
	const limit = 128
	d := w.under(t, fmt.Sprintf("ulimit -n %d", limit))
	early := d.innocents()
	if wrong := early.once(t.Context()); wrong != nil {
		t.Fatal(wrong)
	}
	var taken []net.Conn
	for range 2 * limit {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", d.Front)
		if err != nil {
			break
		}
		taken = append(taken, conn)
	}
	suite.Eventually(t, 10*time.Second, "full", func() (bool, string) { return d.served(t.Context()) != nil, "others are served" })
	if !strings.Contains(d.Log.String(), "new connections wait") {
		t.Error("nothing is logged")
	}
	if n := d.metric(t, `fairlead_accept_stalls_total{port="front"}`); n == 0 {
		t.Error("nothing is counted")
	}
	// Open connections still work, and backends stay healthy: probes dial anew all the time.
	probed := d.others.Stats().Handshakes
	suite.Eventually(t, 30*time.Second, "probed", func() (bool, string) { return d.others.Stats().Handshakes > probed, "no new probe" })
	for range 100 {
		if wrong := early.once(t.Context()); wrong != nil {
			t.Errorf("an open connection received %s", wrong)
		}
	}
	if n := d.metric(t, "aggregator_unavailable_apiservice{"); n != 0 {
		t.Errorf("%v APIServices became unavailable", n)
	}
	open := d.descriptors(t)
	for _, c := range taken {
		_ = c.Close()
	}
	begun := time.Now()
	suite.Eventually(t, 10*time.Second, "served again", func() (bool, string) { wrong := d.served(t.Context()); return wrong == nil, fmt.Sprint(wrong) })
	t.Logf("%d connections tried, %d of %d descriptors in use, open connections served, APIServices available; new ones served %s after these were given back",
		len(taken), open, limit, time.Since(begun).Round(time.Millisecond))
}

// testMemoryLimit has many clients request much and read slowly, in a container without room for
// all of it. The kernel kills a process that uses more.
func testMemoryLimit(t *testing.T, w *world) {
	const room = 128 * mib
	const limit = room / 10 * 9
	d := w.under(t, "echo $$ >"+filepath.Join(container(t, room), "cgroup.procs"))
	if n := d.metric(t, "go_gc_gomemlimit_bytes"); n < limit-mib || n > limit+mib { // the kernel rounds to pages
		t.Errorf("the limit is reported as %v bytes", n)
	}
	var readers []net.Conn
	c := d.endure(t, func() {
		for range 40 {
			readers = append(readers, d.asksFrames(t, 35))
		}
	})
	_, peak := d.memory(t)
	t.Logf("a container of %d MiB, 1,400 lists of 100 KB that nobody reads: %d MiB resident at most; %s", room/mib, peak/mib, c)
	c.held(t, room)
	for _, r := range readers {
		_ = r.Close()
	}
}

// container makes a cgroup with so much memory, of the machine's version.
func container(t *testing.T, room int) string {
	t.Helper()
	top, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(top, "memory")); err == nil {
		top, limit = filepath.Join(top, "memory"), "memory.limit_in_bytes"
	} else if err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		t.Fatalf("limiting memory (needs root): %v", err)
	}
	dir, err := os.MkdirTemp(top, "fairlead-") //nolint:usetesting // it has to be there
	if err != nil {
		t.Fatalf("making a control group (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	must.Do(t, os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(room)), 0))
	return dir
}

// testFullDisk fills the file system of the access log, and frees it again.
func testFullDisk(t *testing.T, w *world) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatalf("mounting a small file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	file, filler := filepath.Join(dir, "access.log"), filepath.Join(dir, "filler")
	d := w.open(t, "--access-log="+file)
	d.burst(t, 100, "before")
	if err := os.WriteFile(filler, padding(400<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	d.burst(t, 500, "while full")
	suite.Eventually(t, 5*time.Second, "a report", func() (bool, string) {
		return strings.Contains(d.Log.String(), "writing access log") && d.metric(t, "fairlead_access_log_lost_total") > 0, d.Log.String()
	})
	lost := d.metric(t, "fairlead_access_log_lost_total")
	must.Do(t, os.Remove(filler))
	d.burst(t, 100, "after")
	suite.Eventually(t, 5*time.Second, "written again", func() (bool, string) { n, _ := lines(t, file, "after"); return n == 100, fmt.Sprint(n, " lines") })
	n, bad := lines(t, file, "before")
	if n != 100 || bad > 1 { // one may be incomplete
		t.Errorf("%d lines from before, %d that are not JSON", n, bad)
	}
	t.Logf("500 requests served with a full disk, %v lines lost and counted; lines of all 100 after it", lost)
}

// burst sends n requests. None may fail.
func (d *door) burst(t *testing.T, n int, mark string) {
	t.Helper()
	i := d.innocents()
	i.url = "https://" + d.Front + others + "/" + strings.ReplaceAll(mark, " ", "-")
	defer i.client.CloseIdleConnections()
	for range n {
		if wrong := i.once(t.Context()); wrong == nil || !strings.HasPrefix(wrong.Error(), "404") { // the widget does not exist; its name is in the log
			t.Fatalf("%s: answered %q", mark, wrong)
		}
	}
}

// lines counts an access log's lines that mention mark, and those that are not JSON.
func lines(t *testing.T, file, mark string) (n, bad int) {
	t.Helper()
	f := must.Get(os.Open(file))(t)
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if !json.Valid(in.Bytes()) {
			bad++
		} else if strings.Contains(in.Text(), `/`+mark+`"`) {
			n++
		}
	}
	return n, bad
}

// testNoLog gives the process a standard error and an access log that cannot be written to.
func testNoLog(t *testing.T, w *world) {
	d := w.under(t, "exec 2>/dev/full", "--access-log=/dev/full", "--v=4")
	i := d.innocents()
	for range 500 {
		if wrong := i.once(t.Context()); wrong != nil {
			t.Fatal(wrong)
		}
	}
	var lost float64
	suite.Eventually(t, 5*time.Second, "counted", func() (bool, string) {
		lost = d.metric(t, "fairlead_access_log_lost_total")
		return lost >= 500, fmt.Sprint(lost, " lines lost")
	})
	t.Logf("500 requests served with both logs on /dev/full, %v lines lost and counted", lost)
}

// testStopped stops the process for longer than any of its pings and probes may take, and continues
// it.
func testStopped(t *testing.T, w *world) {
	const stop = 12 * time.Second
	d := w.open(t)
	c := client(w.as("watcher"), "h2")
	c.Timeout = 0
	ended := make(chan error, 1)
	events := d.watch(t, c, ended)
	i := d.innocents()
	if wrong := i.once(t.Context()); wrong != nil {
		t.Fatal(wrong)
	}
	must.Do(t, d.Process.Signal(syscall.SIGSTOP))
	suite.Pause(t, stop)
	begun := time.Now()
	must.Do(t, d.Process.Signal(syscall.SIGCONT))
	if wrong := i.once(t.Context()); wrong != nil {
		t.Errorf("the first request afterwards received %s", wrong)
	}
	back := time.Since(begun)
	suite.Pause(t, 3*time.Second) // until a false alarm would have shown
	if n := d.metric(t, "aggregator_unavailable_apiservice_total{"); n != 0 {
		t.Errorf("APIServices became unavailable %v times", n)
	}
	seen := events.Load()
	d.others.Emit()
	suite.Eventually(t, 5*time.Second, "the event", func() (bool, string) { return events.Load() > seen, "nothing came" })
	select {
	case err := <-ended:
		t.Errorf("the watch ended: %v", err)
	default:
	}
	t.Logf("stopped for %s: answered %s after SIGCONT, no verdict changed, the watch continues", stop, back.Round(time.Millisecond))
}

// watch counts the events of a watch of the innocents' API.
func (d *door) watch(t *testing.T, c *http.Client, ended chan<- error) *atomic.Int64 {
	t.Helper()
	res := must.Get(ask.Open(t.Context(), c, "https://"+d.Front+others+"?watch=true", nil))(t)
	var n atomic.Int64
	go func() { // ends with the test's context
		defer res.Body.Close()
		for in := bufio.NewReader(res.Body); ; n.Add(1) {
			if _, err := in.ReadSlice('\n'); err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				ended <- err
				return
			}
		}
	}()
	return &n
}

// testDNS registers a backend with an external name, and removes the name.
func testDNS(t *testing.T, w *world) {
	dir := t.TempDir()
	hosts, resolv := filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil { // in place: it is mounted
			t.Fatal(err)
		}
	}
	const with, without = "127.0.0.1 localhost named.test\n", "127.0.0.1 localhost\n"
	write(hosts, with)
	write(resolv, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n") // there is no server there
	// A new mount namespace: the machine's files stay unchanged.
	script := filepath.Join(dir, "fairlead")
	inside := fmt.Sprintf("mount --bind %s /etc/hosts && mount --bind %s /etc/resolv.conf && GODEBUG=netdns=go exec %s \"$@\"", hosts, resolv, w.bin)
	write(script, "#!/bin/sh\nexec unshare --mount --propagation private sh -c '"+inside+"' sh \"$@\"\n")
	must.Do(t, os.Chmod(script, 0o700))
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Fatalf("making a mount namespace (needs root): %v\n%s", err, out)
	}
	other := *w
	other.bin = script
	d := other.open(t)
	named := w.extension(t, "named", "named.example.com/v1", -1)
	path := "/apis/named.example.com/v1/namespaces/default/widgets"
	port := strconv.Itoa(named.Port())
	text, _, _ := strings.Cut(w.manifest("named", "named.example.com", named.Addr(), ""), "---\napiVersion: v1\n")
	text = strings.Replace(text, "name: named}", "name: named, port: "+port+"}", 1)
	suite.Put(t, filepath.Join(d.registry, "named.yaml"), text+"---\napiVersion: v1\nkind: Service\nmetadata: {namespace: apps, name: named}\nspec: {type: ExternalName, externalName: named.test, ports: [{port: "+port+"}]}\n")
	d.serves(t, path)
	write(hosts, without)
	begun := time.Now()
	var shown string
	suite.Eventually(t, time.Minute, "a report", func() (bool, string) {
		status, body := d.ask(t, d.root, "https://"+d.Front+path)
		shown = body
		return status == http.StatusServiceUnavailable, fmt.Sprintf("%d %.200s", status, body)
	})
	failed := time.Since(begun)
	_, page := d.ask(t, d.root, "https://"+d.Admin+"/status")
	if !strings.Contains(page, "named.test") || !strings.Contains(d.Log.String(), "named.test") {
		t.Errorf("status or log lacks the name: %s\n%.2000s", shown, page)
	}
	if wrong := d.served(t.Context()); wrong != nil {
		t.Errorf("others received %s meanwhile", wrong)
	}
	write(hosts, with)
	begun = time.Now()
	d.serves(t, path)
	t.Logf("unavailable %s after the name was gone, reported, others served; available again %s after it was back", failed.Round(100*time.Millisecond), time.Since(begun).Round(100*time.Millisecond))
}
