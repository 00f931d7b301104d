//go:build e2e

package interop

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/manifests"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const (
	nginx = `daemon off; pid %[1]s/pid; error_log stderr info; events {}
http {
  access_log off; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen 127.0.0.1:%[2]d ssl http2; listen 127.0.0.1:%[3]d ssl http2; listen 127.0.0.1:%[4]d ssl http2;
    ssl_certificate %[5]s; ssl_certificate_key %[6]s;
    location / { proxy_pass %[7]s; proxy_buffering off; proxy_http_version 1.1; proxy_read_timeout 5m; }
  }
}
`
	node = `const h2 = require('http2'), fs = require('fs');
const [, , dir, a, b, c, cert, key] = process.argv;
for (const port of [a, b, c]) h2.createSecureServer({cert: fs.readFileSync(cert), key: fs.readFileSync(key)}, (req, res) => {
  console.error(req.method, req.url);
  if (req.url.includes('watch=1')) { res.write('{}\n'); return; }
  res.setHeader('content-type', 'application/json');
  res.end(JSON.stringify({kind: 'APIResourceList', apiVersion: 'v1', groupVersion: 'odd.example.com/v1', resources: []}));
}).on('session', () => console.error('begins a session')).listen(+port, '127.0.0.1');
`
)

// TestLongHeads sends heads that a server refuses with the end of its connection: the streams of
// others go on, over whatever replicas and however often.
func TestLongHeads(t *testing.T) {
	bin := os.Getenv("FAIRLEAD")
	if bin == "" {
		bin = suite.Build(t, t.TempDir())
	}
	for _, tc := range []struct {
		name, config string
		run          []string // with the folder, three ports, certificate, key and the URL of a plain server
		field        int      // bytes of one field
		refused      string   // the server's line of log for each
	}{
		{"nginx", nginx, []string{"nginx", "-c"}, 20 << 10, "too large header"},
		{"node", node, []string{"node"}, 100 << 10, "begins a session"},
	} {
		t.Run(tc.name, func(t *testing.T) { testLongHeads(t, bin, tc.config, tc.run, tc.field, tc.refused) })
	}
}

func testLongHeads(t *testing.T, bin, config string, run []string, field int, refused string) {
	plain := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(plain.Close)
	keys, dir, ports := alone.NewKeys(), t.TempDir(), alone.Ports(t, 3)
	pair := alone.Pair(t, keys.Servers, pki.Leaf{CommonName: "odd", Names: []string{"127.0.0.1"}})
	file := filepath.Join(dir, "config")
	args := append(run[1:], file)
	if run[0] == "nginx" {
		config = fmt.Sprintf(config, dir, ports[0], ports[1], ports[2], pair.CertFile, pair.KeyFile, plain.URL)
	} else {
		args = append(args, dir, fmt.Sprint(ports[0]), fmt.Sprint(ports[1]), fmt.Sprint(ports[2]), pair.CertFile, pair.KeyFile)
	}
	must.Do(t, os.WriteFile(file, []byte(config), 0o600))
	var book logbook.Book
	server := exec.Command(run[0], args...)
	server.Stdout, server.Stderr = &book, &book
	must.Do(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Signal(os.Interrupt)
		_ = server.Wait()
	})
	registry := t.TempDir()
	urls := fmt.Sprintf("fairlead.dev/url: \"https://127.0.0.1:%d,https://127.0.0.1:%d,https://127.0.0.1:%d\"", ports[0], ports[1], ports[2])
	suite.Put(t, filepath.Join(registry, "odd.yaml"), manifests.At("odd.example.com", "v1", "127.0.0.1:443", keys.Servers.PEM(), urls))
	d := keys.Serve(t, bin, registry)
	user := func(name string) *http.Client {
		return suite.Client(t, cluster.Endpoint{CAFile: alone.Bundle(t, keys.Servers)}, cluster.Credentials{Pair: alone.Pair(t, keys.Clients, pki.Leaf{CommonName: name, Organizations: []string{"system:masters"}})})
	}
	url := "https://" + d.Front + "/apis/odd.example.com/v1/widgets"
	others := user("other")
	suite.Eventually(t, time.Minute, "served", func() (bool, string) {
		code, body := alone.Get(t, others, url)
		return code == http.StatusOK, body
	})
	var over atomic.Int32
	for i := range 12 {
		res := must.Get(ask.Open(t.Context(), user(fmt.Sprint("watcher-", i)), url+"?watch=1", nil))(t)
		lines := bufio.NewScanner(res.Body)
		check.Same(t, true, lines.Scan(), "watch %d has begun", i)
		t.Cleanup(func() { _ = res.Body.Close() })
		go func() { // ends with the body
			lines.Scan()
			over.Add(1)
		}()
	}
	mallory := user("mallory")
	ill := func(method string) ask.Reply {
		return must.Get(ask.Do(t.Context(), mallory, method, url, http.Header{"X-Long": {strings.Repeat("x", field)}}, ""))(t)
	}
	before := strings.Count(book.String(), refused)
	reply := ill(http.MethodGet)
	check.Same(t, http.StatusRequestHeaderFieldsTooLarge, reply.Code, "%s", reply.Body)
	check.Same(t, 1, strings.Count(book.String(), refused)-before, "how often it was sent: %s", book.String())
	check.Same(t, 0, over.Load(), "watches that a GET has ended")
	lost := 0
	for i := range 30 { // five a second
		if i%6 == 0 {
			ill([]string{http.MethodGet, http.MethodPost}[i/6%2])
		}
		for range 8 {
			if code, body := alone.Get(t, others, url); code != http.StatusOK {
				lost++
				t.Log(code, body)
			}
		}
	}
	check.Same(t, [2]int{}, [2]int{lost, int(over.Load())}, "of 240 requests of others, and of their 12 watches, lost")
	for _, page := range []string{"https://" + d.Admin + "/status", "https://" + d.Front + "/fairlead/explain?path=/apis/odd.example.com/v1"} {
		if _, body := alone.Get(t, others, page); !strings.Contains(body, `"goAway"`) || !strings.Contains(body, " GOAWAY ") {
			t.Errorf("%s: %s", page, body)
		}
	}
	if !strings.Contains(d.Log.String(), "ended a connection with an error") {
		t.Error("the log does not say so")
	}
}

// serve is the server behind nginx.
func serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Has("watch") {
		fmt.Fprintln(w, "{}")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	fmt.Fprintln(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"odd.example.com/v1","resources":[]}`)
}
