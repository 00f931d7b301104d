//go:build e2e

package interop

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// TestLongHeads sends heads that a server refuses with the end of its connection: the streams of
// others go on, over whatever replicas and however often.
func TestLongHeads(t *testing.T) {
	for _, tc := range []struct {
		server  string
		field   int    // bytes of one field
		refused string // the server's line of log for each
	}{
		{"nginx", 20 << 10, "too large header"},
		{"node-http2", 100 << 10, "begins a session"},
	} {
		t.Run(tc.server, func(t *testing.T) { testLongHeads(t, tc.server, tc.field, tc.refused) })
	}
}

func testLongHeads(t *testing.T, name string, field int, refused string) {
	s := servers[slices.IndexFunc(servers, func(s server) bool { return s.name == name })]
	keys, ports := alone.NewKeys(), alone.Ports(t, 4)
	pair := alone.Pair(t, keys.Servers, pki.Leaf{CommonName: "odd", Names: []string{"127.0.0.1"}})
	run(t, script("node", "server.js", "http")("", ports[3], cluster.Pair{}, 0))
	var logs []*logbook.Book
	var urls []string
	for _, port := range ports[:3] {
		logs = append(logs, run(t, s.program(t.TempDir(), port, pair, ports[3])))
		urls = append(urls, fmt.Sprintf("https://127.0.0.1:%d", port))
	}
	refusals := func() (n int) {
		for _, one := range logs {
			n += strings.Count(one.String(), refused)
		}
		return n
	}
	registry := t.TempDir()
	suite.Put(t, filepath.Join(registry, "odd.yaml"), manifests.At("odd.example.com", "v1", "127.0.0.1:443", keys.Servers.PEM(), fmt.Sprintf("fairlead.dev/url: %q", strings.Join(urls, ","))))
	d := keys.Serve(t, fairlead(t), registry)
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
		res := must.Get(ask.Open(t.Context(), user(fmt.Sprint("watcher-", i)), url+"?watch=1&for=300", nil))(t)
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
	before := refusals()
	reply := ill(http.MethodGet)
	check.Same(t, http.StatusRequestHeaderFieldsTooLarge, reply.Code, "%s", reply.Body)
	check.Same(t, 1, refusals()-before, "how often it was sent: %s", logs)
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
		_, body := alone.Get(t, others, page)
		check.Has(t, body, `"goAway"`, " GOAWAY ")
	}
	check.Has(t, d.Log.String(), "ended a connection with an error")
}
