//go:build e2e

package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

const (
	// beacon is the ConfigMap that clients read.
	beacon     = "beacon"
	configMaps = "/api/v1/namespaces/" + namespace + "/configmaps"
	// clientPatience is how long a client waits for the end of an answer: three times Fairlead's
	// own timeout, so that silence is Fairlead's fault.
	clientPatience = 3 * requestTimeout
	// stallAfter is how long a client waits for an event: 75 times their interval, and three times
	// as long as it takes to detect a dead backend.
	stallAfter = 15 * time.Second
)

type class struct {
	name   string
	weight int // the percentage of requests in this class
	// path is the local apiserver's. Empty: a group's backend, and write changes something there.
	path  string
	write bool
	// identity says that the answer names the caller; anonymous requests have no credentials.
	identity, anonymous bool
	answer, send        int // limit the sizes of payload and body
	want                int // the expected status, or zero for 2xx
	// has is what a complete JSON document of the local apiserver contains. Empty: not checked.
	has    string
	header http.Header // added to the request
}

// reviews is where the local apiserver says who the caller is.
const reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

func classes() []class {
	aggregated := http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}}
	return []class{
		{name: "remote read", weight: 34, identity: true, answer: 2_000},
		{name: "remote read, large", weight: 4, identity: true, answer: 400_000},
		{name: "remote write", weight: 24, write: true, identity: true, answer: 2_000, send: 4_000},
		// Beyond the 256 KiB that are kept for a retry.
		{name: "remote write, large", weight: 3, write: true, identity: true, answer: 2_000, send: 600_000},
		{name: "local read", weight: 16, path: configMaps + "/" + beacon, has: `"name":"` + beacon + `"`},
		{name: "local identity", weight: 8, path: reviews, identity: true},
		{name: "local watch", weight: 2, path: configMaps + "?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3D" + beacon},
		{name: "discovery", weight: 3, path: "/apis", header: aggregated, has: `"kind":"APIGroupDiscoveryList"`},
		{name: "anonymous", weight: 3, anonymous: true, want: http.StatusUnauthorized},
		{name: "impersonation", weight: 3, want: http.StatusForbidden, header: http.Header{"Impersonate-User": {"admin"}}},
	}
}

type task struct {
	exchange

	class  class
	group  *group // nil for the local apiserver
	caller *caller
	door   *door
	// h2 asks for HTTP/2. forged adds headers of a more powerful user. fresh uses a new connection.
	h2, forged, fresh bool
	method, path      string
	body              []byte
	size              int           // of the answer's payload, or the number of a watch's events
	quit              time.Duration // when the client gives up, after its start. Zero: it does not.
}

// draw makes the next task. Which it is depends on the seed alone, but for the door, which is a ready one. Most
// requests use one of a few names, so that the authorization cache holds only some thousand decisions.
func (w *world) draw(watch bool) *task {
	n := w.asked.Add(1)
	r := rand.New(rand.NewPCG(*seed, n))
	g, percent := w.groups[r.IntN(len(w.groups))], r.IntN(100)
	if watch {
		percent = 0
	}
	t := &task{caller: w.callers[r.IntN(len(w.callers))], door: w.choose(r.IntN(1000)), h2: r.IntN(4) > 0, method: http.MethodGet}
	for _, t.class = range classes() {
		if percent -= t.class.weight; percent < 0 {
			break
		}
	}
	t.exchange = exchange{ID: fmt.Sprintf("r%d", n), Class: t.class.name, Want: t.class.want, Watch: watch}
	t.forged, t.fresh = r.IntN(5) == 0, r.IntN(50) == 0
	if name := fmt.Sprintf("w%d", r.IntN(5)); t.class.path == "" {
		if r.IntN(40) == 0 {
			name = t.ID
		}
		t.locate(g, name, r)
	} else {
		t.path = t.class.path
		t.Scopes = []string{plane}
	}
	t.Scopes = append(t.Scopes, "door:"+t.door.name, plane)
	if !t.h2 {
		t.Scopes = append(t.Scopes, "h1:door:"+t.door.name)
	}
	switch t.path {
	case "/apis":
		t.Scopes = append(t.Scopes, "discovery")
	case reviews:
		t.method, t.body = http.MethodPost, []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	}
	if t.class.identity {
		t.User, t.Groups = t.caller.user, t.caller.groups
	}
	if quit := time.Duration(1+r.IntN(40)) * time.Millisecond; r.IntN(50) == 0 {
		t.quit = quit
	}
	return t
}

// locate makes it a request for a widget of a group, or a watch of all.
func (t *task) locate(g *group, name string, r *rand.Rand) {
	t.group, t.Group, t.Version, t.Scopes = g, g.name, "v1", []string{g.scope()}
	if t.Watch {
		t.Class, t.Want, t.size = "remote watch", http.StatusOK, 20+r.IntN(300)
		t.path = g.widgets() + "?watch=1"
		t.Scopes = []string{"watch:" + g.name, "watch:door:" + t.door.name, g.scope()}
		return
	}
	t.size = r.IntN(t.class.answer + 1)
	sent := r.IntN(t.class.send + 1)
	if t.class.write {
		t.method = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}[r.IntN(4)]
		if t.method != http.MethodDelete {
			t.body = []byte(`"` + payload(t.ID, sent) + `"`)
		}
		t.Sum = sum(t.body)
	}
	t.path = g.widgets()
	if t.method != http.MethodPost {
		t.path += "/" + name
	}
	t.path += fmt.Sprintf("?size=%d", t.size)
}

func (w *world) request(ctx context.Context) {
	t := w.draw(false)
	if t.Sum != "" {
		w.checker.begin(t.exchange)
	}
	patience := clientPatience
	if t.quit > 0 {
		patience = t.quit
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tr := w.transport(t)
	if t.class.anonymous || t.fresh {
		alone := t.caller.tls.Clone()
		if t.class.anonymous {
			alone.Certificates = nil
		}
		tr = transport(alone, t.h2)
		defer tr.CloseIdleConnections()
	}
	t.Begun = time.Now()
	t.send(ctx, tr, t.read)
	t.Ended = time.Now()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && t.Err != "" {
		if t.quit > 0 {
			return // the client has left on purpose
		}
		t.GaveUp = true
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return // the soak was stopped
	}
	w.checker.end(t.exchange)
}

// send sends the request, with the caller's credentials and forged ones, and lets read read the answer's body.
func (t *task) send(ctx context.Context, tr http.RoundTripper, read func(body io.Reader)) {
	req, err := http.NewRequestWithContext(ctx, t.method, t.door.Endpoint.URL+t.path, bytes.NewReader(t.body))
	if err != nil {
		panic(err) // our own paths are valid
	}
	if len(t.body) == 0 {
		req.Body = nil
	}
	req.Header.Set(idHeader, t.ID)
	req.Header.Set("Content-Type", "application/json")
	maps.Copy(req.Header, t.class.header)
	if !t.class.anonymous {
		maps.Copy(req.Header, t.caller.header.Clone())
	}
	if t.forged && !t.caller.trusted || t.class.anonymous {
		req.Header.Set("X-Remote-User", "admin")
		req.Header.Add("X-Remote-Group", "system:masters")
		req.Header["X_Remote_User"] = []string{"admin"}
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Err = err.Error()
		return
	}
	defer res.Body.Close()
	t.Code = res.StatusCode
	// Only Fairlead's own promises count. If the local apiserver may have executed the request, its
	// answer has the header fields of priority and fairness.
	t.RetryAfter = res.Header.Get("Retry-After") != "" && res.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == ""
	if text := res.Header.Get(receiptHeader); text != "" {
		t.Head = new(receipt)
		if json.Unmarshal([]byte(text), t.Head) != nil {
			t.Garbled = "its receipt: " + text
		}
	}
	read(res.Body)
}

// read reads the body and checks that of a success.
func (t *task) read(from io.Reader) {
	body, err := io.ReadAll(io.LimitReader(from, 16<<20))
	if err != nil {
		t.Err = "reading body: " + err.Error()
	}
	t.Text = string(body[:min(len(body), 300)])
	var w widget
	var review authenticationv1.SelfSubjectReview
	switch {
	case t.Err != "" || t.Code/100 != 2:
	case t.class.has != "":
		if !json.Valid(body) || !strings.Contains(string(body), t.class.has) {
			t.Garbled = fmt.Sprintf("%d bytes without %q: %.100q", len(body), t.class.has, body)
		}
	case !t.class.identity: // nothing is known of it
	case t.group == nil:
		if json.Unmarshal(body, &review) == nil { // otherwise the checker reports the missing receipt
			info := review.Status.UserInfo
			t.Body, t.Text = &receipt{Server: "kube-apiserver", User: info.Username, Groups: slices.Sorted(slices.Values(info.Groups))}, ""
		}
	case json.Unmarshal(body, &w) == nil && w.Receipt != nil: // likewise
		t.Body, t.Text = w.Receipt, ""
		if t.Head == nil {
			t.Garbled = "its header is lost"
		}
		if want := payload(t.ID, t.size); w.Payload != want {
			t.Garbled = fmt.Sprintf("%d bytes %.60q, want %d", len(w.Payload), w.Payload, len(want))
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

var errStalled = errors.New("nothing came")

// watch opens a watch and reads events until there are enough, or it ends.
func (w *world) watch(ctx context.Context) {
	t := w.draw(true)
	watching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	guard := time.AfterFunc(stallAfter, func() { cancel(errStalled) })
	defer guard.Stop()
	t.Begun = time.Now()
	t.send(watching, w.transport(t), func(body io.Reader) { t.events(body, guard) })
	t.GaveUp = t.Err != "" && errors.Is(context.Cause(watching), errStalled)
	t.Ended = time.Now()
	if ctx.Err() != nil {
		return
	}
	w.checker.end(t.exchange)
	if t.Code != http.StatusOK { // refused: wait a little, as clients do
		pause(ctx, 200*time.Millisecond)
	}
}

// events reads a watch's events, and resets guard with each.
func (t *task) events(body io.Reader, guard *time.Timer) {
	if t.Code != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, 300))
		t.Text = string(text)
		return
	}
	if t.Head == nil || t.Garbled != "" {
		// A backend that cuts off its answers or hangs in them sends invented data first. Only an
		// answer that continues, or ends properly, shows that it lied.
		t.Head, t.Garbled = nil, ""
		if _, err := io.CopyN(io.Discard, body, 64<<10); err == nil || errors.Is(err, io.EOF) {
			t.Garbled = "no receipt in the header"
		} else {
			t.Err = err.Error()
		}
		return
	}
	lines, want := bufio.NewReader(body), *t.Head
	for want.Seq < t.size {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return
		}
		if err != nil { // also within an event
			t.Err = err.Error()
			return
		}
		guard.Reset(stallAfter)
		want.Seq++
		var e widget
		switch err := json.Unmarshal(line, &e); {
		case err != nil || e.Receipt == nil:
			t.Garbled = fmt.Sprintf("no event: %.100q", line)
		case !reflect.DeepEqual(*e.Receipt, want):
			t.Garbled = fmt.Sprintf("%+v, want %+v", *e.Receipt, want)
		case e.Payload != eventPayload(&want):
			t.Garbled = fmt.Sprintf("%d bytes %.60q", len(e.Payload), e.Payload)
		default:
			continue
		}
		return
	}
}
