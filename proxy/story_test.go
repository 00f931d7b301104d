package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// stage is where a story plays: a world whose backends do what the query says, see act. Steps:
//
//	only [h2|http1]        what follows is told only with a remote that speaks this; all else with each
//	anew [option]...       a new world, see anew
//	over [way]...          how to send requests from now on: http/1.1, h2, or for an upgrade the protocol
//	also [file]...         from now on each is sent again with the fields of each file, to the same effect
//	full pool [long]       no places are left
//	full parked            nor any for requests that wait for a look-up
//	local unhealthy|gone|restarts   the local apiserver
//	drain leave|reject     steps of a drain
//	given-up user|address  who has given up too many requests
//	deaf [busy]            reviews fail from now on, because nobody answers or too many wait
//	count what times       so far: own credentials rejected, reviews, tokens that were reviewed, refusals of who has given up,
//	                       and since the last full those of a backend that is busy
//	METHOD target word...  a request, to each of the targets if there are some in braces
//
// Words of a request: token=user, cert=user:group,…, Name:value, where + is a space and ME the name of this Fairlead,
// with=file of fields, body=text, streamed=text of unknown length, at=admin, over=way,…, pad=length of the target,
// afresh, over a new connection to the remote, and leaves or drained: its client goes, or a drain ends what is
// long-running, when a backend has the request.
//
// Behind or below a request is what came of it, where dots are any text, and a slash between spaces
// means or: < is what its client got, > what a backend got, and | what was recorded, each without
// what is usual. "ok" is the usual answer, and for an upgrade a session that echoes.
type stage struct {
	*story.Story
	*world
	t          *testing.T
	http1      bool // the remote speaks only that
	ruled      bool // with the policy neverMatches
	ways, also []string
	pairs      map[string]*pki.Pair
	admin      *httptest.Server
	hanging    chan struct{} // a request hangs at a backend
	records
}

type step struct {
	at    string
	words []string
	want  []string
}

// question is a request of a story, in one way.
type question struct {
	*http.Request
	target, body string
	pair         *pki.Pair
	leaves       bool
	drained      bool
	afresh       bool
	ways         []string
	way          string
	id           string // the Audit-ID with which it went or was answered
	parent       string // the traceparent with which it went
}

// What clients and backends see of a request, and what is recorded, over any protocols.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, told *story.Story) {
		var steps []*step
		for at, words := range told.Steps() {
			if !strings.Contains("<>|", words[0]) {
				steps = append(steps, &step{at: at})
			}
			last := steps[len(steps)-1]
			for _, word := range words {
				switch n := len(last.want); {
				case strings.Contains("<>|", word):
					last.want = append(last.want, word)
				case n == 0:
					last.words = append(last.words, word)
				default:
					last.want[n-1] += " " + word
				}
			}
		}
		for _, run := range []string{"to h2", "to http1", "to h2, ruled"} {
			_, remote, _ := strings.Cut(run, " ")
			remote, ruled := strings.CutSuffix(remote, ", ruled")
			if _, name, _ := strings.Cut(t.Name(), "/"); ruled && name != "identity" && name != "impersonate" && name != "behind" {
				continue
			}
			t.Run(run, func(t *testing.T) {
				s, only := &stage{Story: told, t: t, http1: remote == "http1", ruled: ruled, pairs: map[string]*pki.Pair{}, hanging: make(chan struct{}, 64)}, remote
				for _, one := range steps {
					if one.words[0] == "only" {
						only = cmp.Or(strings.Join(one.words[1:], ""), remote)
						must.Be(t, only == "h2" || only == "http1", "%s: no remote speaks %s", one.at, only)
					} else if only == remote {
						s.play(one)
					}
				}
				s.end()
			})
		}
	})
}

func (s *stage) play(one *step) {
	words := one.words
	switch words[0] {
	case "anew":
		s.end()
		s.anew(words[1:])
	case "over":
		s.ways = words[1:]
		must.Be(s.t, len(s.ways) > 0, "%s: no ways", one.at)
	case "also":
		s.also = words[1:]
	case "full":
		s.full(words[1], len(words) > 2)
	case "local":
		s.localIs(words[1])
	case "drain":
		map[string]func(){"leave": s.proxy.Leave, "reject": s.proxy.RejectNew}[words[1]]()
	case "given-up":
		s.givenUp(words[1])
	case "deaf":
		s.deaf(len(words) > 1)
	case "count":
		s.count(one)
	default:
		begin, rest, _ := strings.Cut(words[1], "{")
		each, end, _ := strings.Cut(rest, "}")
		for target := range strings.SplitSeq(each, ",") {
			for _, also := range append([]string{""}, s.also...) {
				for _, way := range s.question(words, "", also).ways {
					q := s.question(words, begin+target+end, also)
					q.way = way
					s.ask(one, q, also)
				}
			}
		}
	}
}

func (s *stage) question(words []string, target, also string) *question {
	q := &question{Request: must.Get(http.NewRequestWithContext(s.t.Context(), words[0], s.front.URL, nil))(s.t), target: target, ways: s.ways}
	path, query, has := strings.Cut(q.target, "?")
	q.Host = frontHost
	q.URL.Host, q.URL.Opaque, q.URL.RawQuery, q.URL.ForceQuery = frontHost, "//"+frontHost+path, query, has
	q.Header.Set("User-Agent", "story")
	s.add(q.Header, also)
	body := func(text string, length int) {
		q.body, q.ContentLength, q.Body = text, int64(length), io.NopCloser(strings.NewReader(text))
	}
	s.each(words[2:], map[string]func(v string){
		"leaves":  func(string) { q.leaves = true },
		"drained": func(string) { q.drained = true },
		"afresh":  func(string) { q.afresh = true },
		"token":   func(v string) { q.Header.Set("Authorization", "Bearer token-of-"+v) },
		"cert":    func(v string) { q.pair = s.pair(v) },
		"with":    func(v string) { s.add(q.Header, v) },
		"pad": func(v string) {
			q.target += strings.Repeat("x", must.Get(strconv.Atoi(v))(s.t)-len(q.target))
			q.URL.RawQuery = q.target[len(path)+1:]
		},
		"body":     func(v string) { body(v, len(v)) },
		"streamed": func(v string) { body(v, -1) },
		"at":       func(string) { q.URL, q.ways = must.Get(q.URL.Parse(s.admin.URL+q.target))(s.t), []string{"http/1.1"} },
		"over":     func(v string) { q.ways = strings.Split(v, ",") },
		"": func(word string) {
			key, value, field := strings.Cut(word, ":")
			must.Be(s.t, field, "%s: what is %s?", target, word)
			q.Header[key] = append(q.Header[key], strings.NewReplacer("+", " ", "ME", s.proxy.instance).Replace(value))
		},
	})
	return q
}

// each does what set has for each word.
func (s *stage) each(words []string, set map[string]func(v string)) {
	story.Set(s.t, strings.Join(words, " "), words, set)
}

// add adds the fields of a file, with names as they are written.
func (s *stage) add(h http.Header, file string) {
	if file == "" {
		return
	}
	for line := range strings.Lines(s.File(s.t, file)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		h[name] = append(h[name], value)
	}
}

// pair returns the certificate of a user, of the front proxy or of a foreign CA.
func (s *stage) pair(name string) *pki.Pair {
	if s.pairs[name] == nil {
		user, groups, _ := strings.Cut(name, ":")
		leaf := pki.Leaf{CommonName: user, Organizations: strings.FieldsFunc(groups, func(r rune) bool { return r == ',' })}
		ca := map[string]*pki.CA{"front": s.authorities.front, "foreign": pki.NewCA("elsewhere")}[name]
		s.pairs[name] = cmp.Or(ca, s.client).Issue(leaf)
	}
	return s.pairs[name]
}

func (s *stage) ask(one *step, q *question, also string) {
	fars := map[string]*far{"remote": s.remote, "local": s.local}
	before := map[string]int{"remote": s.remote.count(), "local": s.local.count()}
	if q.afresh {
		s.remote.CloseClientConnections()
	}
	got := s.send(q)
	for name, f := range fars {
		f.mu.Lock()
		for _, in := range f.got[before[name]:] {
			got = append(got, "> "+name+s.received(f, in, q))
		}
		f.mu.Unlock()
	}
	about := fmt.Sprintf("%s: %s over %s, also with %q", one.at, q.target, q.way, also)
	for _, line := range one.want {
		if strings.HasPrefix(line, "|") {
			got = append(got, s.recorded(about, line, q))
		}
	}
	var pattern []string
	for _, line := range one.want {
		mark, rest, _ := strings.Cut(line, " ")
		pattern = append(pattern, regexp.QuoteMeta(mark+" ")+"("+strings.NewReplacer(`\.\.\.`, ".*", " / ", "|").Replace(regexp.QuoteMeta(rest))+")")
	}
	if text := strings.Join(got, "\n"); !must.Get(regexp.MatchString("^"+strings.Join(pattern, "\n")+"$", text))(s.t) {
		s.t.Errorf("%s:\n%s\nwant:\n%s", about, text, strings.Join(one.want, "\n"))
	}
}

func (s *stage) send(q *question) (got []string) {
	proto := q.way
	switch proto {
	case "h2":
		q.Header.Del("Connection")
	case "http/1.1":
	default:
		q.Header["Connection"] = append(q.Header["Connection"], "Upgrade")
		q.Header.Set("Upgrade", q.way)
		proto = "http/1.1"
	}
	ctx, leave := context.WithCancel(httptrace.WithClientTrace(q.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		got = append(got, fmt.Sprint("< ", code, unusual(http.Header(h), nil)))
		return nil
	}}))
	defer leave()
	if q.leaves {
		go func() { <-s.hanging; leave() }()
	} else if q.drained {
		go func() { <-s.hanging; s.proxy.EndLongRunning(0) }()
	}
	res, err := s.httpClient(s.t, proto, q.pair).Do(q.WithContext(ctx))
	if err != nil {
		return append(got, "< nothing")
	}
	defer res.Body.Close()
	if session, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		return append(got, "< "+s.echo(session)+unusual(res.Header, http.Header{"Connection": {"Upgrade"}, "Upgrade": {q.way}, "X-Mine": {"yes"}}))
	}
	body, err := io.ReadAll(res.Body)
	text := s.answer(q, res, body)
	if err != nil {
		text += "; broken off"
	}
	if got = append(got, "< "+text); len(res.Trailer) > 0 {
		got = append(got, "< then"+unusual(res.Trailer, nil))
	}
	return got
}

func (s *stage) echo(session io.ReadWriteCloser) string {
	text := []byte("ok")
	must.Get(session.Write(text))(s.t)
	must.Get(io.ReadFull(session, text))(s.t)
	must.Do(s.t, session.Close())
	must.Soon(s.t, 10*time.Second, "the session ends", func() bool { return s.proxy.Sessions() == 0 })
	return string(text)
}

// answer describes an answer. Fairlead's own are Statuses without an address, with the fields of
// every answer of kube-apiserver.
func (s *stage) answer(q *question, res *http.Response, body []byte) string {
	text, usual := strings.Join(strings.Fields(string(body)), " "), http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		text, usual = status.Message, http.Header{"Cache-Control": {"no-cache, private"}, "Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}}
		if int(status.Code) != res.StatusCode || strings.Contains(string(body), "10.1.2.3") || strings.Contains(string(body), "127.0.0.1") {
			s.t.Errorf("answered with %d: %s", res.StatusCode, body)
		}
	}
	if q.URL.Host == frontHost && (status.Kind == "Status" || res.Header["Audit-Id"] != nil || strings.Contains(q.target, "do=fields")) {
		q.identified(res.Header, usual)
	}
	if length := res.Header["Content-Length"]; length != nil && text != "" && length[0] != strconv.Itoa(len(body)) {
		s.t.Errorf("the length of %q is given as %s", text, length)
	}
	for _, name := range []string{"Date", "Content-Length"} {
		res.Header.Del(name)
	}
	if text == "" {
		delete(usual, "Content-Type")
	}
	if res.Close && s.proxy.leaving.Load() { // net/http has removed the field
		res.Header.Set("Connection", "close")
	}
	if res.StatusCode != http.StatusOK || text != "ok" {
		text = strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", text))
	}
	return text + unusual(res.Header, usual)
}

// identified makes one Audit-ID usual wherever it is seen: the client's, or a UUID.
func (q *question) identified(h, usual http.Header) {
	q.id = cmp.Or(q.id, q.Header.Get("Audit-Id"), uuid4.FindString(h.Get("Audit-Id")))
	usual.Set("Audit-Id", cmp.Or(q.id, "a UUID"))
}

// received describes a request as a backend received it.
func (s *stage) received(f *far, in received, q *question) string {
	got, remote := in.header.Clone(), f == s.remote
	usual := http.Header{
		"Host": {frontHost}, "User-Agent": {"story"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {frontHost}, "X-Forwarded-Proto": {"https"},
		http.CanonicalHeaderKey(loopHeader): {"ME"}, "Target": {q.Method + " " + q.target}, "Body": {q.body},
	}
	got.Set(loopHeader, strings.ReplaceAll(got.Get(loopHeader), s.proxy.instance, "ME"))
	if maps.Copy(got, http.Header{"Target": {in.method + " " + in.target}, "Body": {in.body}}); in.peer != "" {
		got.Set("Certificate", in.peer)
	}
	if remote {
		maps.Copy(usual, http.Header{"Host": {f.Listener.Addr().String()}, "Certificate": {"front-proxy-client"}})
	}
	if q.way != "h2" && q.way != "http/1.1" {
		maps.Copy(usual, http.Header{"Connection": {"Upgrade"}, "Upgrade": {q.way}})
	}
	q.identified(got, usual)
	maps.DeleteFunc(got, func(name string, _ []string) bool { // the last is a digest of a certificate
		return name == "Accept-Encoding" || name == "Content-Length" || strings.HasSuffix(strings.ToLower(name), "credential-id")
	})
	if !remote && s.pools {
		got.Set("Proto", in.proto)
	}
	if q.parent = got.Get("Traceparent"); q.parent != q.Header.Get("Traceparent") {
		got.Set("Traceparent", map[bool]string{true: "continued", false: "new"}[strings.Contains(q.parent, callersTrace)]+q.parent[len(q.parent)-3:])
	}
	return unusual(got, usual)
}

func unusual(got, usual http.Header) (text string) {
	all := maps.Clone(got)
	maps.Copy(all, usual)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Equal(got[name], usual[name]) {
			text += "; " + strings.ToLower(name) + ": " + cmp.Or(strings.Join(got[name], "|"), "none")
		}
	}
	return text
}

func (s *stage) act(w http.ResponseWriter, r *http.Request) {
	word, arg, _ := strings.Cut(r.URL.Query().Get("do"), ":")
	switch {
	case word == "raw", word == "switch": // a file, and echo what comes afterwards
		hijacked(func(c io.ReadWriter, _ *http.Request) {
			_, _ = io.WriteString(c, strings.ReplaceAll(s.File(s.t, arg), "\n", "\r\n"))
			if word == "switch" {
				_, _ = io.Copy(c, c)
			}
		})(w, r)
	case word == "endless":
		hijacked(func(c io.ReadWriter, _ *http.Request) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nX: "+strings.Repeat("x", maxUpgradeHead))
		})(w, r)
	case r.Header.Get("Authorization") == "Bearer bad":
		w.WriteHeader(http.StatusUnauthorized)
	case word == "status" || word == "bare":
		if word == "status" {
			w.Header().Set("Location", "https://evil.example.com/")
		}
		w.WriteHeader(must.Get(strconv.Atoi(arg))(s.t))
	case word == "hang" || word == "stream":
		if word == "stream" {
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case s.hanging <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	case word == "cut":
		panic(http.ErrAbortHandler)
	case word == "half":
		w.Header().Set("Content-Length", "2")
		w.WriteHeader(http.StatusCreated)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case word == "dirty": // the fields of a file, everywhere
		set := func(prefix, value string) {
			for name := range strings.Lines(s.File(s.t, arg)) {
				w.Header().Set(prefix+strings.TrimSpace(name), value)
			}
		}
		set("", "interim")
		w.WriteHeader(http.StatusEarlyHints)
		set("", "final")
		w.Header().Set("X-Said", "final")
		w.Header().Set("Trailer", "X-Said, Access-Control-Allow-Methods")
		_, _ = io.WriteString(w, "ok")
		_ = http.NewResponseController(w).Flush()
		set("", "trailer")
		set(http.TrailerPrefix, "trailer")
		w.Header().Set("X-Said", "trailer")
	case word == "fields":
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		w.Header().Set("Cache-Control", "public")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Strict-Transport-Security", "max-age=0")
	case word == "widget":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Widget"}`)
	case r.Header.Get("Upgrade") != "":
		switching(w, r)
	default:
		_, _ = io.WriteString(w, "ok")
	}
}
