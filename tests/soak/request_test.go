//go:build e2e

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// beacon is the ConfigMap that clients read.
	beacon = "beacon"
	// clientPatience is how long a client waits for the end of an answer: three times Fairlead's
	// own timeout, so that silence is Fairlead's fault.
	clientPatience = 3 * requestTimeout
)

type task struct {
	id    string
	class class
	// name is the object's. Most requests use one of a few names, so that the authorization cache
	// holds only some thousand decisions.
	name   string
	group  *group // nil for the local apiserver
	caller *caller
	door   int // an index into the ready ones
	h2     bool
	// forged adds headers of a more powerful user. fresh uses a new connection.
	forged, fresh bool
	method        string
	size, body    int // of the answer's payload, and of the request
	// quit is when the client gives up, after its start. Zero: it does not.
	quit time.Duration
}

// draw makes the next task, from the seed alone.
func (l *load) draw() *task {
	n := l.asked.Add(1)
	r := l.rng
	t := &task{id: "r" + strconv.FormatInt(n, 10), class: pick(r.IntN(100)), door: r.IntN(1000), h2: r.IntN(4) > 0, method: http.MethodGet}
	t.name = "w" + strconv.Itoa(r.IntN(5))
	if r.IntN(40) == 0 {
		t.name = t.id
	}
	t.caller = l.w.callers[r.IntN(len(l.w.callers))]
	t.forged, t.fresh = r.IntN(5) == 0, r.IntN(50) == 0
	if g := l.w.groups[r.IntN(len(l.w.groups))]; t.class.remote {
		t.group = g
	}
	t.size, t.body = r.IntN(t.class.answer+1), r.IntN(t.class.send+1)
	if m := r.IntN(4); t.class.write {
		t.method = [...]string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}[m]
	}
	if quit := time.Duration(1+r.IntN(40)) * time.Millisecond; r.IntN(50) == 0 {
		t.quit = quit
	}
	return t
}

// do sends a task's request and records how it ended.
func (l *load) do(ctx context.Context, t *task) {
	d := l.w.choose(t.door)
	x := t.exchange(d)
	method, path, body := t.wire()
	if x.Write {
		x.Sum = sum(body)
		l.w.checker.begin(x)
	}
	patience := clientPatience
	if t.quit > 0 {
		patience = t.quit
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, d.Endpoint.URL+path, bytes.NewReader(body))
	if err != nil {
		panic(err) // our own paths are valid
	}
	if len(body) == 0 {
		req.Body = nil
	}
	t.dress(req)
	tr := l.transport(d, t.caller, t.h2)
	if t.class.anonymous || t.fresh {
		alone := t.caller.tls.Clone()
		if t.class.anonymous {
			alone.Certificates = nil
		}
		tr = transport(alone, t.h2)
		defer tr.CloseIdleConnections()
	}
	x.Begun = time.Now()
	t.send(req, tr, &x)
	x.Ended = time.Now()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && x.Err != "" {
		if t.quit > 0 {
			return // the client has left on purpose
		}
		x.GaveUp = true
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return // the soak was stopped
	}
	l.w.checker.end(x)
}

// exchange returns the record of a successful request.
func (t *task) exchange(d *door) exchange {
	x := exchange{ID: t.id, Class: t.class.name, Write: t.class.write, Want: t.class.want}
	door := []string{"door:" + d.name}
	if !t.h2 {
		door = append(door, "h1:door:"+d.name)
	}
	if t.group == nil {
		x.Scopes = append([]string{"plane"}, door...)
	} else {
		x.Scopes = append(append([]string{t.group.scope()}, door...), "plane")
		x.Group, x.Version = t.group.name, t.group.version
	}
	if t.class.identity {
		x.User, x.Groups = t.caller.user, t.caller.groups
	}
	if t.class.name == discovery {
		x.Scopes = append(x.Scopes, "discovery")
	}
	return x
}

// dress adds the caller's credentials, and forged ones.
func (t *task) dress(req *http.Request) {
	req.Header.Set(idHeader, t.id)
	req.Header.Set("Content-Type", "application/json")
	if t.class.accept != "" {
		req.Header.Set("Accept", t.class.accept)
	}
	if !t.class.anonymous {
		maps.Copy(req.Header, t.caller.header)
	}
	if t.forged && !t.caller.trusted || t.class.anonymous {
		req.Header.Set("X-Remote-User", "admin")
		req.Header.Add("X-Remote-Group", "system:masters")
		req.Header["X_Remote_User"] = []string{"admin"}
	}
	if t.class.name == impersonation {
		req.Header.Set("Impersonate-User", "admin")
	}
}

// send sends the request and records the result in x.
func (t *task) send(req *http.Request, tr http.RoundTripper, x *exchange) {
	res, err := tr.RoundTrip(req)
	if err != nil {
		x.Err = err.Error()
		return
	}
	defer res.Body.Close()
	x.Code = res.StatusCode
	// Only Fairlead's own promises count. If the local apiserver may have executed the request, its
	// answer has the header fields of priority and fairness.
	x.RetryAfter = res.Header.Get("Retry-After") != "" && res.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == ""
	if text := res.Header.Get(receiptHeader); text != "" {
		x.Head = new(receipt)
		if err := json.Unmarshal([]byte(text), x.Head); err != nil {
			x.Garbled = "its receipt: " + text
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil {
		x.Err = "reading body: " + err.Error()
	}
	x.Text = string(body[:min(len(body), 300)])
	if x.Err == "" && x.Code/100 == 2 && t.class.read != nil {
		t.class.read(t, x, body)
	}
}

// readWidget expects a site's answer.
func readWidget(t *task, x *exchange, body []byte) {
	var w widget
	if err := json.Unmarshal(body, &w); err != nil || w.Receipt == nil {
		return // the checker reports the missing receipt
	}
	x.Body, x.Text = w.Receipt, ""
	if x.Head == nil {
		x.Garbled = "its header is lost"
	}
	if want := payload(x.ID, t.size); w.Payload != want {
		x.Garbled = fmt.Sprintf("%d bytes %.60q, want %d", len(w.Payload), w.Payload, len(want))
	}
}

// readReview expects the local apiserver's view of the caller.
func readReview(_ *task, x *exchange, body []byte) {
	var review struct {
		Status struct {
			UserInfo struct {
				Username string   `json:"username"`
				Groups   []string `json:"groups"`
			} `json:"userInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &review); err == nil {
		info := review.Status.UserInfo
		x.Body, x.Text = &receipt{Server: "kube-apiserver", User: info.Username, Groups: slices.Sorted(slices.Values(info.Groups))}, ""
	}
}

// readJSON expects a complete document that contains text.
func readJSON(text string) func(*task, *exchange, []byte) {
	return func(_ *task, x *exchange, body []byte) {
		if !json.Valid(body) || !strings.Contains(string(body), text) {
			x.Garbled = fmt.Sprintf("%d bytes without %q: %.100q", len(body), text, body)
		}
	}
}
