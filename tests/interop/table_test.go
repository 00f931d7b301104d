//go:build e2e

package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

type call struct {
	name, method, query string
	body                string            // declared, chunked or slow. Empty: none
	pause               int               // seconds in which it reads nothing, after the first bytes
	stopped             time.Duration     // for which it is stopped, after the first bytes
	fields              map[string]string // more fields of its head
	expect              bool              // it waits for 100 Continue
	more                []string          // for client.js's environment, or nghttp's arguments
	only                []string          // clients that can. Nil: all
	at                  string            // the server that can. Empty: all
}

// waits reports whether most of the call's time is spent waiting.
func (c call) waits() bool {
	return c.pause > 0 || c.at != "" || strings.Contains(c.query, "for=") || c.body == "slow"
}

func (c call) env() []string {
	if c.fields == nil {
		c.fields = map[string]string{}
	}
	fields, _ := json.Marshal(c.fields) // strings only
	env := append([]string{"FORM=" + c.body, "FIELDS=" + string(fields), fmt.Sprint("PAUSE=", c.pause)}, c.more...)
	if c.expect {
		env = append(env, "EXPECT=1")
	}
	return env
}

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
		{name: "expect", method: "PATCH", query: "/w", body: "declared", expect: true, only: append(node, "curl-h1", "jdk-h1")},
		{name: "expect, 50 over one connection", method: "PATCH", query: "/w", body: "declared", expect: true, more: []string{"TIMES=50"}, only: node},
		{name: "50 over one connection", method: "GET", query: "/w?size=1000", more: []string{"TIMES=50"}, only: node},
		// hypercorn allows 100 streams.
		{name: "90 watches come and go ten times", method: "GET", query: "/w", more: []string{"CHURN=90"}, only: node[1:], at: "hypercorn"},
		{name: "8 uploads of 1 MiB at a time over one connection", method: "POST", query: "/w", body: "declared", more: []string{"-m8"}, only: []string{"nghttp"}, at: "tomcat-http2"},
		{name: "150 lists and a watch beside 16 MB that others do not read", method: "GET", query: "/w?size=1000", more: []string{"TIMES=150", "BESIDE=1"}, only: node[1:], at: "node-http2-10mb"},
	}
}

var good = regexp.MustCompile(`^\d*x? ?(20[01])? ?bytes=`) // what comes of each call directly

// TestTable asks every server through Fairlead and directly: the same comes.
func TestTable(t *testing.T) {
	w := begin(t)
	quick := make(chan struct{}, 4) // calls that wait for nothing: more at a time are a test of the processor
	must.Do(t, os.WriteFile(w.upload(), []byte(strings.Repeat("y", 1<<20)), 0o600))
	for _, s := range servers {
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
						wait := w.do(t, one, c, road)
						both.Go(func() { got[i] = wait() })
					}
					both.Wait()
					check.Same(t, true, good.MatchString(got[0]), "directly it does not work: %s", got[0])
					check.Same(t, got[0], got[1], "directly, and here")
				})
			}
		}
	}
}

// asks reports whether a case is in the table. Every client asks one server. Every server is asked
// by curl, in each protocol that it knows.
func asks(one client, s server, c call) bool {
	switch {
	case c.at != "", s.apart:
		return s.name == c.at && slices.Contains(c.only, one.name)
	case c.only != nil && !slices.Contains(c.only, one.name), one.name == "nghttp" && c.pause > 0:
		return false
	}
	return s.name == "node-http2" || one.name == "curl-h1" || one.name == "curl-h2" && !s.http1
}
