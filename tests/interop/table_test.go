//go:build e2e

package interop

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// calls are the behaviours of the table. The longest take two minutes; they run in parallel.
func calls() []call {
	long := map[string]string{}
	for name := range strings.SplitSeq("abcdefgh", "") { // 8 of 700 bytes: any server takes 6 KB
		long["x-long-"+name] = strings.Repeat(name, 700)
	}
	node := []string{"node-https", "node-http2"}
	return []call{
		{name: "list of 1 KB", method: "GET", query: "/w?size=1000"},
		{name: "list of 5 MB", method: "GET", query: "/w?size=5000000"},
		{name: "watch, quiet for two minutes", method: "GET", query: "/w?watch=1&for=120"},
		{name: "list of 16 MB, a pause of 45 s", method: "GET", query: "/w?size=16000000", pause: 45},
		{name: "watch, stopped for 65 s", method: "GET", query: "/w?watch=1&for=75", stopped: 65 * time.Second},
		{name: "upload of 1 MiB", method: "POST", query: "/w", body: "declared"},
		{name: "upload of 1 MiB, chunked", method: "POST", query: "/w", body: "chunked"},
		{name: "slow upload", method: "POST", query: "/w", body: "slow"},
		{name: "answered after 20 s", method: "POST", query: "/w?for=20", body: "declared"},
		{name: "long fields", method: "GET", query: "/w?size=1000", fields: long},
		{name: "expect", method: "PATCH", query: "/w", body: "declared", expect: true, only: append(node, "curl-h1", "jdk-h1", "jdk-h2")},
		{name: "expect, 50 over one connection", method: "PATCH", query: "/w", body: "declared", expect: true, times: 50, only: node},
		{name: "50 over one connection", method: "GET", query: "/w?size=1000", times: 50, only: node},
		{name: "200 watches come and go ten times", method: "GET", query: "/w", churn: 200, only: []string{"node-http2"}, at: "hypercorn"},
	}
}

// good is what comes of each call directly.
var good = regexp.MustCompile(`^\d*x? ?(20[01])? ?bytes=`)

// TestTable asks every server through Fairlead and directly: the same comes.
func TestTable(t *testing.T) {
	w := begin(t)
	quick := make(chan struct{}, 4) // calls that wait for nothing: more at a time are a test of the processor
	must.Do(t, os.WriteFile(w.upload(), []byte(strings.Repeat("y", 1<<20)), 0o600))
	for _, s := range w.servers {
		for _, one := range clients {
			for _, c := range calls() {
				if !asks(one, s, c) {
					continue
				}
				t.Run(s.name+"/"+one.name+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					if !c.waits() {
						quick <- struct{}{}
						defer func() { <-quick }()
					}
					var got [2]string
					var both sync.WaitGroup
					for i, road := range w.roads(s) {
						both.Go(func() { got[i] = w.do(t, one, c, road) })
					}
					both.Wait()
					if !good.MatchString(got[0]) {
						t.Errorf("directly it does not work: %s", got[0])
					}
					if got[0] != got[1] {
						t.Errorf("directly: %s\nhere:     %s", got[0], got[1])
					}
				})
			}
		}
	}
}

// asks reports whether a case is in the table. Every client asks one server. Every server is asked
// by curl, in each protocol that it knows.
func asks(one client, s server, c call) bool {
	switch {
	case c.at != "":
		return s.name == c.at && slices.Contains(c.only, one.name)
	case c.only != nil && !slices.Contains(c.only, one.name), one.name == "nghttp" && c.pause > 0:
		return false
	}
	return s.name == "node-http2" || one.name == "curl-h1" || one.name == "curl-h2" && !s.http1
}
