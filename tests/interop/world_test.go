//go:build e2e

package interop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const (
	nginx = `daemon off; master_process off; user root; pid %[1]s/pid; error_log stderr info; events {}
http {
  access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen 127.0.0.1:%[2]d ssl http2; ssl_certificate %[3]s; ssl_certificate_key %[4]s; client_max_body_size 8m;
    location / { proxy_pass http://127.0.0.1:%[5]d; proxy_buffering off; proxy_http_version 1.1; proxy_read_timeout 5m; }
  }
}
`
	apache = `ServerName odd
PidFile %[1]s/pid
ErrorLog %[1]s/error.log
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule ssl_module /usr/lib/apache2/modules/mod_ssl.so
LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
Listen 127.0.0.1:%[2]d
Protocols h2 http/1.1
Timeout 300
SSLEngine on
SSLCertificateFile %[3]s
SSLCertificateKeyFile %[4]s
ProxyPass / http://127.0.0.1:%[5]d/ flushpackets=on
`
)

// server is an extension server. Its program has a folder, a port, the key pair, and the port of a
// plain server that it may relay to.
type server struct {
	name, url string
	http1     bool // it knows no HTTP/2
	apart     bool // only calls that name it are made there
	program   func(dir string, port int, pair cluster.Pair, plain int) []string
}

var servers = []server{
	{name: "node-http2", program: script("node", "server.js", "http2")},
	{name: "node-http2-10mb", apart: true, program: script("node", "server.js", "http2-10mb")},
	{name: "node-https", http1: true, program: script("node", "server.js", "https")},
	{name: "tomcat-http2", program: tomcat("http2")},
	{name: "tomcat-https", http1: true, program: tomcat("https")},
	{name: "nginx", program: relay(nginx, "nginx", "-c")},
	{name: "apache", program: relay(apache, "apache2", "-X", "-f")},
	{name: "gunicorn", http1: true, program: func(_ string, port int, pair cluster.Pair, _ int) []string {
		return []string{"/usr/bin/gunicorn", "--chdir=testdata", "--threads=64", "--timeout=300", "--keep-alive=5", fmt.Sprint("--bind=127.0.0.1:", port), "--certfile=" + pair.CertFile, "--keyfile=" + pair.KeyFile, "server:wsgi"}
	}},
	{name: "hypercorn", program: script("/usr/bin/python3", "server.py", "")},
}

// relay is a server of a configuration that relays to the plain server.
func relay(config string, args ...string) func(string, int, cluster.Pair, int) []string {
	return func(dir string, port int, pair cluster.Pair, plain int) []string {
		file := filepath.Join(dir, "config")
		_ = os.WriteFile(file, fmt.Appendf(nil, config, dir, port, pair.CertFile, pair.KeyFile, plain), 0o600) // the program that reads it says so
		return append(slices.Clone(args), file)
	}
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

// dying are setpriv's arguments for a program that ends with this process, even if that is killed.
var dying = []string{"--pdeathsig=KILL", "--"}

// fairlead is a program that executes Fairlead, or another one to compare it with.
func fairlead(t *testing.T) string {
	bin, file := os.Getenv("FAIRLEAD"), filepath.Join(t.TempDir(), "run")
	if bin == "" {
		bin = suite.Build(t, t.TempDir())
	}
	must.Do(t, os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nexec setpriv %s %s \"$@\"\n", strings.Join(dying, " "), bin), 0o700))
	return file
}

// world is a Fairlead with the servers behind it, and a user.
type world struct {
	front, dir string
	ca         string // of all servers
	user       cluster.Pair
	env        []string // of clients: both, and the user's as a store
}

// begin starts everything, and waits until each server answers both roads.
func begin(t *testing.T) *world {
	bin := fairlead(t)
	keys, registry, w := alone.NewKeys(), t.TempDir(), &world{dir: t.TempDir()}
	t.Cleanup(func() { _ = os.RemoveAll(classes) })
	if out, err := exec.CommandContext(t.Context(), "javac", "-nowarn", "-cp", jars(), "-d", classes, "testdata/Server.java", "testdata/Client.java").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := alone.Ports(t, len(servers)+1)
	plain := ports[len(servers)]
	run(t, script("node", "server.js", "http")("", plain, cluster.Pair{}, 0))
	pair := alone.Pair(t, keys.Servers, pki.Leaf{CommonName: "odd", Names: []string{"127.0.0.1", "localhost"}})
	for i := range servers {
		s := &servers[i]
		run(t, s.program(t.TempDir(), ports[i], pair, plain))
		s.url = fmt.Sprintf("https://127.0.0.1:%d", ports[i])
		suite.Put(t, filepath.Join(registry, s.name+".yaml"), manifests.At(s.name+".example.com", "v1", "127.0.0.1:443", keys.Servers.PEM(), fmt.Sprintf("fairlead.dev/url: %q", s.url)))
	}
	w.user, w.ca = alone.Pair(t, keys.Clients, pki.Leaf{CommonName: "user", Organizations: []string{"system:masters"}}), alone.Bundle(t, keys.Servers)
	store := filepath.Join(w.dir, "store.p12")
	out, err := exec.CommandContext(t.Context(), "openssl", "pkcs12", "-export", "-in", w.user.CertFile, "-inkey", w.user.KeyFile, "-out", store, "-passout", "pass:x").CombinedOutput()
	must.Be(t, err == nil, "%v: %s", err, out)
	w.env = append(os.Environ(), "CA="+w.ca, "CERT="+w.user.CertFile, "KEY="+w.user.KeyFile, "STORE="+store)
	client := suite.Client(t, cluster.Endpoint{CAFile: w.ca}, cluster.Credentials{Pair: w.user})
	serve := func(road int) {
		for _, s := range servers {
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

// run runs a server until the test ends, and returns its log.
func run(t *testing.T, args []string) *logbook.Book {
	t.Helper()
	book := new(logbook.Book)
	cmd := exec.Command("setpriv", append(slices.Clip(dying), args...)...)
	cmd.Stdout, cmd.Stderr = book, book
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // some have workers
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.9000s", args[0], book.String())
		}
	})
	return book
}

// roads are the URLs of a server: itself, and through Fairlead.
func (w *world) roads(s server) [2]string {
	path := "/apis/" + s.name + ".example.com/v1"
	return [2]string{s.url + path, w.front + path}
}

// client is a client program. Its arguments get the call's method and URL.
type client struct {
	name    string
	program func(w *world, c call, url string) []string
	raw     bool // prints the body, and nothing of its own but the status at its end
}

var clients = []client{
	{name: "curl-h1", raw: true, program: curl("--http1.1")},
	{name: "curl-h2", raw: true, program: curl("--http2")},
	{name: "nghttp", raw: true, program: func(w *world, c call, url string) []string {
		args := []string{"nghttp", "-t", "300s", "--cert=" + w.user.CertFile, "--key=" + w.user.KeyFile, "-H:method: " + c.method}
		args = append(args, c.more...)
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
	{name: "jdk-h1", program: scripted("java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Client", "HTTP_1_1")},
	{name: "jdk-h2", program: scripted("java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Client", "HTTP_2")},
}

func scripted(args ...string) func(*world, call, string) []string {
	return func(_ *world, c call, url string) []string { return append(slices.Clone(args), c.method, url) }
}

func curl(version string) func(*world, call, string) []string {
	return func(w *world, c call, url string) []string {
		args := []string{"curl", "-sSN", version, "-X", c.method, "--cacert", w.ca, "--cert", w.user.CertFile, "--key", w.user.KeyFile, "-w", "\n%{http_code}"}
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

// upload is a file of 1 MiB.
func (w *world) upload() string { return filepath.Join(w.dir, "upload") }

const most = 5 * time.Minute // how long a client may take: the longest call waits for two minutes

// do runs a client, and returns a function that waits for what comes of the call, on any goroutine.
func (w *world) do(t *testing.T, one client, c call, url string) func() string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	cmd := exec.CommandContext(ctx, "setpriv", append(slices.Clip(dying), one.program(w, c, url+c.query)...)...)
	cmd.Env = append(slices.Clone(w.env), c.env()...)
	var errs logbook.Book
	cmd.Stderr = &errs
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	return func() string {
		defer cancel()
		first := make([]byte, 1<<10)
		n, err := out.Read(first)
		stopped := c.stopped
		if one.raw && c.pause > 0 {
			stopped = time.Duration(c.pause) * time.Second // it cannot pause by itself
		}
		if err == nil && stopped > 0 {
			_ = cmd.Process.Signal(syscall.SIGSTOP) // if it has ended, that is what comes
			<-time.After(stopped)
			_ = cmd.Process.Signal(syscall.SIGCONT)
		}
		rest, _ := io.ReadAll(out) // what ended it is in end
		text, end := string(first[:n])+string(rest), cmd.Wait()
		if !one.raw {
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "begun\n")) + fmt.Sprintf("%s %v", errs.String(), end)
		}
		body, status := text, ""
		if i := strings.LastIndexByte(body, '\n'); i >= 0 && one.name != "nghttp" {
			body, status = body[:i], body[i+1:]
		}
		return fmt.Sprintf("%s bytes=%d sha=%.6x %q %s %v", status, len(body), sha256.Sum256([]byte(body)), body[:min(len(body), 600)], errs.String(), end)
	}
}
