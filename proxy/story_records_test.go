package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// recorded waits for the next record of the kind that is wanted, and describes it.
func (s *stage) recorded(about, want string, q *question) string {
	if strings.HasPrefix(want, "| span") {
		return s.span(about, q)
	}
	from, describe := s.log, s.line
	if strings.HasPrefix(want, "| audit") {
		from, describe = s.audits, s.event
	}
	text := must.Come[string](s.t, 10*time.Second, about+": recorded: "+want, from)
	check.Same(s.t, false, strings.Contains(text, "token-of-"), "%s: a record holds a token: %s", about, text)
	return describe(about, text, q)
}

func (s *stage) line(about, text string, q *question) string {
	var all map[string]any
	var at struct {
		Time                time.Time
		Waited, First, Took time.Duration
	}
	must.Do(s.t, json.Unmarshal([]byte(text), &all))
	must.Do(s.t, json.Unmarshal([]byte(text), &at))
	waited := at.Waited <= at.First && at.First <= at.Took && at.Waited > 0
	check.Same(s.t, false, time.Since(at.Time).Abs() > time.Minute || at.Took <= 0 || at.First > at.Took || (at.First > 0 && at.Waited > 0 || q.afresh) && !waited, "%s: the times are wrong: %s", about, text)
	path, _, _ := strings.Cut(q.target, "?")
	usual := http.Header{
		"level": {"INFO"}, "msg": {"request"}, "method": {q.Method}, "path": {path}, "from": {"127.0.0.1"}, "tls": {"TLS 1.3"}, "proto": {"HTTP/1.1"}, "audit": {q.id}, "agent": {"story"},
	}
	if q.way == "h2" {
		usual["proto"] = []string{"HTTP/2.0"}
	}
	toRemote := all["endpoint"] == s.remote.Listener.Addr().String() && q.Header.Get("Upgrade") == ""
	if all["tries"] != nil || toRemote && !s.http1 { // HTTP/1.1 does not count them
		usual["tries"] = []string{"1"}
	}
	got := http.Header{}
	for name, value := range all {
		got[name] = []string{s.named(fmt.Sprint(value))}
	}
	for _, name := range []string{"took", "time", "first", "waited", "new"} {
		delete(got, name)
	}
	return "| log" + unusual(got, usual)
}

func (s *stage) named(value string) string {
	for name, f := range map[string]*far{"remote": s.remote, "local": s.local} {
		if value == f.Listener.Addr().String() {
			return name
		}
	}
	return value
}

func (s *stage) event(about, text string, q *question) string {
	var ev auditv1.Event
	must.Do(s.t, json.Unmarshal([]byte(text), &ev))
	words := []string{"| audit", string(ev.Stage), string(ev.Level), ev.Verb, ev.User.Username}
	if ev.ImpersonatedUser != nil {
		words = append(words, "as", ev.ImpersonatedUser.Username)
	}
	if ev.ResponseStatus != nil {
		words = append(words, fmt.Sprint(ev.ResponseStatus.Code))
	}
	words = append(words, ev.Annotations["authorization.k8s.io/decision"], ev.Annotations["authorization.k8s.io/reason"])
	if ev.RequestURI != q.target {
		words = append(words, ev.RequestURI)
	}
	if ev.RequestObject != nil {
		words = append(words, string(ev.RequestObject.Raw))
	}
	if ev.ResponseObject != nil {
		words = append(words, string(ev.ResponseObject.Raw))
	}
	check.Same(s.t, false, ev.ResponseStatus != nil && strings.Contains(ev.ResponseStatus.Message, "client went away") && !q.leaves, "%s: its client has stayed: %s", about, text)
	remote := strings.HasPrefix(q.target, remoteGV)
	server, further, _ := strings.Cut(ev.Annotations["fairlead.dev/apiservice"], "/")
	if further != "" {
		words = append(words, "by /"+further)
	}
	check.Same(s.t, true, ev.UserAgent == "story" && slices.Equal(ev.SourceIPs, []string{"127.0.0.1"}) && string(ev.AuditID) == q.id && remote == (server == "v1.remote.example.com"), "%s: with ID %q: %+v", about, q.id, ev)
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// span describes a span, which is the parent of what went on.
func (s *stage) span(about string, q *question) string {
	must.Soon(s.t, 10*time.Second, "a span", func() bool { return len(s.spans()) > s.seen })
	one := s.spans()[s.seen]
	s.seen++
	check.Same(s.t, fmt.Sprintf("00-%s-%s-01", one.Trace, one.ID), q.parent, "%s: went on with", about)
	path, _, _ := strings.Cut(q.target, "?")
	got := http.Header{"name": {one.Name}, "events": one.Events, "links": one.Links, "parent": {one.Parent}, "error": {one.Error}}
	usual := http.Header{"events": {"response head"}, "parent": {""}, "error": {""}, "http.request.method": {q.Method}, "url.path": {path}, "audit-id": {q.id}}
	if one.Parent != "" {
		got["parent"] = []string{one.Trace + "-" + one.Parent}
	}
	for name, value := range one.Attributes {
		got[name] = []string{s.named(value)}
	}
	return "| span" + unusual(got, usual)
}
