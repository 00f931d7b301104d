//go:build e2e

package interop

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const apache = `ServerName odd
PidFile %[1]s/pid
ErrorLog %[1]s/error.log
LoadModule mpm_event_module %[6]s/mod_mpm_event.so
LoadModule authz_core_module %[6]s/mod_authz_core.so
LoadModule ssl_module %[6]s/mod_ssl.so
LoadModule http2_module %[6]s/mod_http2.so
LoadModule proxy_module %[6]s/mod_proxy.so
LoadModule proxy_http_module %[6]s/mod_proxy_http.so
Listen 127.0.0.1:%[2]d
Protocols h2 http/1.1
Timeout 300
SSLEngine on
SSLCertificateFile %[3]s
SSLCertificateKeyFile %[4]s
ProxyPass / http://127.0.0.1:%[5]d/ flushpackets=on
`

// server is an extension server. Its program has a folder, a port, the key pair, and the port of a
// plain server that it may relay to.
type server struct {
	name, url string
	http1     bool // it knows no HTTP/2
	program   func(dir string, port int, pair cluster.Pair, plain int) []string
}

// servers are the servers of the table.
var servers = []server{
	{name: "node-http2", program: script("node", "server.js", "http2")},
	{name: "node-https", http1: true, program: script("node", "server.js", "https")},
	{name: "tomcat-http2", program: tomcat("http2")},
	{name: "tomcat-https", http1: true, program: tomcat("https")},
	{name: "nginx", program: func(dir string, port int, pair cluster.Pair, plain int) []string {
		text := "user root;" + strings.Replace(nginx, "listen 127.0.0.1:%[3]d ssl http2; listen 127.0.0.1:%[4]d ssl http2;", "client_max_body_size 8m;", 1)
		return []string{"nginx", "-c", write(dir, fmt.Sprintf(text, dir, port, nil, nil, pair.CertFile, pair.KeyFile, fmt.Sprintf("http://127.0.0.1:%d", plain)))}
	}},
	{name: "apache", program: func(dir string, port int, pair cluster.Pair, plain int) []string {
		return []string{"apache2", "-X", "-f", write(dir, fmt.Sprintf(apache, dir, port, pair.CertFile, pair.KeyFile, plain, "/usr/lib/apache2/modules"))}
	}},
	{name: "gunicorn", http1: true, program: func(_ string, port int, pair cluster.Pair, _ int) []string {
		return []string{"/usr/bin/gunicorn", "--chdir=testdata", "--threads=64", "--timeout=300", "--keep-alive=5", fmt.Sprint("--bind=127.0.0.1:", port), "--certfile=" + pair.CertFile, "--keyfile=" + pair.KeyFile, "server:wsgi"}
	}},
	{name: "hypercorn", program: func(_ string, port int, pair cluster.Pair, _ int) []string {
		return []string{"/usr/bin/python3", "-m", "hypercorn", "--bind", fmt.Sprint("127.0.0.1:", port), "--certfile", pair.CertFile, "--keyfile", pair.KeyFile, "testdata/server:asgi"}
	}},
}

func script(program, file, kind string) func(string, int, cluster.Pair, int) []string {
	return func(_ string, port int, pair cluster.Pair, _ int) []string {
		return []string{program, "testdata/" + file, kind, fmt.Sprint(port), pair.CertFile, pair.KeyFile}
	}
}

func tomcat(kind string) func(string, int, cluster.Pair, int) []string {
	return func(dir string, port int, pair cluster.Pair, _ int) []string {
		return []string{"java", "-XX:TieredStopAtLevel=1", "-cp", classes + ":" + jars(), "Server", kind, fmt.Sprint(port), pair.CertFile, pair.KeyFile, dir}
	}
}

// classes is where javac puts what it makes of testdata.
var classes = filepath.Join(os.TempDir(), fmt.Sprint("fairlead-interop-", os.Getpid()))

// jars are Debian's libtomcat10-java.
func jars() string {
	all, _ := filepath.Glob("/usr/share/java/tomcat10-*.jar") // the pattern is well-formed
	all = slices.DeleteFunc(all, func(name string) bool {
		return strings.Contains(name, "-10.") || strings.Contains(name, "i18n") || strings.Contains(name, "-ant")
	})
	return strings.Join(all, ":")
}

func write(dir, text string) string {
	file := filepath.Join(dir, "config")
	_ = os.WriteFile(file, []byte(text), 0o600) // the program that reads it says so
	return file
}

// world is a Fairlead with the servers behind it, and a user.
type world struct {
	front   string
	servers []server
	env     []string // of clients: a certificate, as a store too, and the CA of all servers
	dir     string
}

// begin starts everything, and waits until each server answers both roads.
func begin(t *testing.T) *world {
	bin := os.Getenv("FAIRLEAD")
	if bin == "" {
		bin = suite.Build(t, t.TempDir())
	}
	keys, registry, w := alone.NewKeys(), t.TempDir(), &world{dir: t.TempDir()}
	compile(t)
	ports := alone.Ports(t, len(servers)+1)
	plain := ports[len(servers)]
	run(t, []string{"node", "testdata/server.js", "http", fmt.Sprint(plain)})
	pair := alone.Pair(t, keys.Servers, pki.Leaf{CommonName: "odd", Names: []string{"127.0.0.1", "localhost"}})
	for i, s := range servers {
		run(t, s.program(t.TempDir(), ports[i], pair, plain))
		s.url = fmt.Sprintf("https://127.0.0.1:%d", ports[i])
		w.servers = append(w.servers, s)
		group := s.name + ".example.com"
		suite.Put(t, filepath.Join(registry, s.name+".yaml"), manifests.At(group, "v1", "127.0.0.1:443", keys.Servers.PEM(), fmt.Sprintf("fairlead.dev/url: %q", s.url)))
	}
	user := alone.Pair(t, keys.Clients, pki.Leaf{CommonName: "user", Organizations: []string{"system:masters"}})
	ca, store := alone.Bundle(t, keys.Servers), filepath.Join(w.dir, "store.p12")
	out, err := exec.CommandContext(t.Context(), "openssl", "pkcs12", "-export", "-in", user.CertFile, "-inkey", user.KeyFile, "-out", store, "-passout", "pass:x").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.env = append(os.Environ(), "CA="+ca, "CERT="+user.CertFile, "KEY="+user.KeyFile, "STORE="+store)
	client := suite.Client(t, cluster.Endpoint{CAFile: ca}, cluster.Credentials{Pair: user})
	serve := func(road int) {
		for _, s := range w.servers {
			suite.Eventually(t, time.Minute, s.name+" serves", func() (bool, string) {
				code, body := alone.Get(t, client, w.roads(s)[road])
				return code == http.StatusOK, body
			})
		}
	}
	serve(0)
	w.front = "https://" + keys.Serve(t, bin, registry).Front // now that all ports are taken
	serve(1)
	return w
}

// compile makes the classes of testdata.
func compile(t *testing.T) {
	t.Cleanup(func() { _ = os.RemoveAll(classes) })
	if out, err := exec.CommandContext(t.Context(), "javac", "-nowarn", "-cp", jars(), "-d", classes, "testdata/Server.java", "testdata/Client.java").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// run runs a server until the test ends.
func run(t *testing.T, args []string) {
	t.Helper()
	var book logbook.Book
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &book, &book
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // some have workers
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.9000s", args[0], book.String())
		}
	})
}

// roads are the URLs of a server: itself, and through Fairlead.
func (w *world) roads(s server) [2]string {
	path := "/apis/" + s.name + ".example.com/v1"
	return [2]string{s.url + path, w.front + path}
}

// call is what a client does.
type call struct {
	name, method, query string
	body                string            // declared, chunked or slow. Empty: none
	pause               int               // seconds in which it reads nothing, after the first bytes
	stopped             time.Duration     // for which it is stopped, after the first bytes
	fields              map[string]string // more fields of its head
	times               int               // how often, over one connection. Zero: once
	expect              bool              // it waits for 100 Continue
	churn               int               // watches that come and go ten times beside it
	only                []string          // clients that can. Nil: all
	at                  string            // the server that can. Empty: all
}

// waits reports whether most of the call's time is spent waiting.
func (c call) waits() bool {
	return c.pause > 0 || c.churn > 0 || strings.Contains(c.query, "for=") || c.body == "slow"
}

func (c call) env() []string {
	if c.fields == nil {
		c.fields = map[string]string{}
	}
	fields, _ := json.Marshal(c.fields) // strings only
	env := []string{"FORM=" + c.body, "FIELDS=" + string(fields)}
	for name, n := range map[string]int{"PAUSE": c.pause, "TIMES": c.times, "CHURN": c.churn} {
		if n > 0 {
			env = append(env, fmt.Sprint(name, "=", n))
		}
	}
	if c.expect {
		env = append(env, "EXPECT=1")
	}
	return env
}

// client is a client program. Its arguments get the call's method and URL.
type client struct {
	name    string
	program func(w *world, c call, url string) []string
	raw     bool // prints the body, and nothing of its own but the status at its end
}

// clients are the clients of the table.
var clients = []client{
	{name: "curl-h1", raw: true, program: curl("--http1.1")},
	{name: "curl-h2", raw: true, program: curl("--http2")},
	{name: "nghttp", raw: true, program: func(w *world, c call, url string) []string {
		args := []string{"nghttp", "-t", "300s", "--cert=" + w.setting("CERT"), "--key=" + w.setting("KEY"), "-H:method: " + c.method}
		for k, v := range c.fields {
			args = append(args, "-H"+k+": "+v)
		}
		if c.body != "" {
			args = append(args, "-d", w.upload())
		}
		return append(args, url)
	}},
	{name: "node-https", program: scripted("node", "testdata/client.js", "https")},
	{name: "node-http2", program: scripted("node", "testdata/client.js", "http2")},
	{name: "undici", program: scripted("node", "testdata/client.js", "undici")},
	{name: "httpx-h1", program: scripted("/usr/bin/python3", "testdata/client.py", "h1")},
	{name: "httpx-h2", program: scripted("/usr/bin/python3", "testdata/client.py", "h2")},
	{name: "jdk-h1", program: jdk("HTTP_1_1")},
	{name: "jdk-h2", program: jdk("HTTP_2")},
}

func scripted(args ...string) func(*world, call, string) []string {
	return func(_ *world, c call, url string) []string { return append(slices.Clone(args), c.method, url) }
}

func jdk(version string) func(*world, call, string) []string {
	return func(_ *world, c call, url string) []string {
		return []string{"java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Client", version, c.method, url}
	}
}

func curl(version string) func(*world, call, string) []string {
	return func(w *world, c call, url string) []string {
		args := []string{"curl", "-sSN", version, "-X", c.method, "--cacert", w.setting("CA"), "--cert", w.setting("CERT"), "--key", w.setting("KEY"), "-w", "\n%{http_code}"}
		for k, v := range c.fields {
			args = append(args, "-H", k+": "+v)
		}
		if c.body != "" {
			args = append(args, "--data-binary", "@"+w.upload(), "-H", "Content-Type: application/json")
		}
		switch {
		case c.body == "chunked" && version == "--http1.1":
			args = append(args, "-H", "Transfer-Encoding: chunked")
		case c.body == "slow":
			args = append(args, "--limit-rate", "100k")
		}
		if c.expect {
			args = append(args, "-H", "Expect: 100-continue")
		}
		return append(args, url)
	}
}

func (w *world) setting(name string) string {
	for _, one := range w.env {
		if value, ok := strings.CutPrefix(one, name+"="); ok && strings.HasPrefix(value, "/") {
			return value
		}
	}
	return ""
}

// upload is a file of 1 MiB.
func (w *world) upload() string { return filepath.Join(w.dir, "upload") }

// do runs a client, and returns what came of the call.
func (w *world) do(t *testing.T, one client, c call, url string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), one.program(w, c, url+c.query)[0], one.program(w, c, url+c.query)[1:]...)
	cmd.Env = append(slices.Clone(w.env), c.env()...)
	var errs logbook.Book
	cmd.Stderr = &errs
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	text, first := []byte{}, make([]byte, 1<<10)
	n, err := out.Read(first)
	stopped := c.stopped
	if one.raw && c.pause > 0 {
		stopped = time.Duration(c.pause) * time.Second // it cannot pause by itself
	}
	if err == nil && stopped > 0 {
		must.Do(t, cmd.Process.Signal(syscall.SIGSTOP))
		suite.Pause(t, stopped)
		must.Do(t, cmd.Process.Signal(syscall.SIGCONT))
	}
	for text = append(text, first[:n]...); err == nil; text = append(text, first[:n]...) {
		n, err = out.Read(first)
	}
	end := cmd.Wait()
	if !one.raw {
		return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(text)), "begun\n")) + fmt.Sprintf("%s %v", errs.String(), end)
	}
	body, status := string(text), ""
	if i := strings.LastIndexByte(body, '\n'); i >= 0 && one.name != "nghttp" {
		body, status = body[:i], body[i+1:]
	}
	return fmt.Sprintf("%s bytes=%d sha=%.6x %q %s %v", status, len(body), sha256.Sum256([]byte(body)), body[:min(len(body), 600)], errs.String(), end)
}
