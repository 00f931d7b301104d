// Package volley asks a server at a steady rate, whether or not the earlier requests were answered:
// a hang must not slow down those who find out about it.
//
// A Load's fields belong to its caller until Start; its methods may be called from any goroutine.
package volley

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Pace does something every so often, each time on a goroutine of its own, until ctx ends; then it
// waits for all of them. After a stall it catches up.
func Pace(ctx context.Context, every time.Duration, do func(i int)) {
	var flying sync.WaitGroup
	defer flying.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for i := 0; ; i++ {
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		next = next.Add(every)
		flying.Go(func() { do(i) })
	}
}

// Load is what is asked for, and what has become of it.
type Load struct {
	// Every is how far the requests are apart.
	Every time.Duration
	// Clients are taken in turns.
	Clients []*http.Client
	// Make says what request i is. An empty body is none.
	Make func(i int) (method, url, body string)
	// Header is what every request has beside the type of its body. Nil: nothing.
	Header http.Header
	// Check looks at the whole body of an answer that was not refused. Nil: bodies are thrown away.
	Check func(body []byte) error
	// Again says that a client may be expected to repeat a request, a second later. Nil: none may.
	Again func(*Shot) bool

	stop   context.CancelFunc
	flying sync.WaitGroup
	mu     sync.Mutex // guards shots
	shots  []Shot
}

// patience is how long a request may take in all: longer than anything is allowed to.
const patience = 40 * time.Second

// Start begins to ask, anew if it has been stopped, until Stop or the test's end.
func (l *Load) Start(t *testing.T) *Load {
	t.Helper()
	pacing, cancel := context.WithCancel(t.Context())
	l.stop, l.shots = cancel, nil
	l.flying.Go(func() {
		Pace(pacing, l.Every, func(i int) {
			s := l.shoot(t.Context(), i)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.shots = append(l.shots, s)
		})
	})
	return l
}

// Stop ends it, waits for the requests under way and returns all in the order in which they began.
func (l *Load) Stop() []Shot {
	l.stop()
	l.flying.Wait()
	return slices.SortedFunc(slices.Values(l.Ended()), func(a, b Shot) int { return a.Began.Compare(b.Began) })
}

// Ended are the requests that have ended so far, in that order.
func (l *Load) Ended() []Shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.shots)
}

func (l *Load) shoot(ctx context.Context, i int) Shot {
	method, url, body := l.Make(i)
	s := Shot{Method: method, Began: time.Now()}
	for {
		l.try(ctx, &s, l.Clients[i%len(l.Clients)], url, body)
		s.Took = time.Since(s.Began)
		if l.Again == nil || !l.Again(&s) {
			return s
		}
		s.Repeated++
		<-time.After(time.Second)
	}
}

// try makes a shot what it became, this time.
func (l *Load) try(ctx context.Context, s *Shot, c *http.Client, url, body string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.Head, s.Code, s.Text, s.Err = 0, 0, "", nil
	var req *http.Request
	if req, s.Err = http.NewRequestWithContext(ctx, s.Method, url, strings.NewReader(body)); s.Err != nil {
		return
	}
	s.Target = req.URL.RequestURI()
	if l.Header != nil {
		req.Header = l.Header.Clone()
	}
	switch {
	case body == "":
		req.Body = nil
	case s.Method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	default:
		req.Header.Set("Content-Type", "application/json")
	}
	var res *http.Response
	if res, s.Err = c.Do(req); s.Err != nil {
		return
	}
	defer func() { _ = res.Body.Close() }()
	s.Head, s.Code = time.Since(s.Began), res.StatusCode
	if s.Code < 400 && l.Check == nil {
		_, s.Err = io.Copy(io.Discard, res.Body)
		return
	}
	var whole []byte
	whole, s.Err = io.ReadAll(res.Body)
	switch {
	case s.Code >= 400:
		s.Text, s.Err = string(whole[:min(len(whole), 1<<10)]), nil
	case s.Err == nil:
		if err := l.Check(whole); err != nil {
			s.Code, s.Text = 999, "a whole answer that is none: "+err.Error() // never to be seen
		}
	}
}

// Shot is one request and what became of it.
type Shot struct {
	// Method and Target are what was asked for, and Began when.
	Method, Target string
	Began          time.Time
	// Head is how long it took from Began to the head of the answer. Zero: none came.
	Head time.Duration
	// Took is how long it took from Began to the end of the answer.
	Took time.Duration
	// Code is the status. Zero: there was none.
	Code int
	// Text is the beginning of the body of an answer that says what is wrong.
	Text string
	// Err is why there is no answer, or no whole one. Nil: there is.
	Err error
	// Repeated is how often it was.
	Repeated int
}

// Failed says that the client got no answer, or one that refuses what is right.
func (s *Shot) Failed() bool { return s.Head == 0 || s.Code >= 400 }

// Cut says that the answer ended before its end, and that the client could tell.
func (s *Shot) Cut() bool { return s.Head != 0 && s.Err != nil }

// String tells all of it.
func (s *Shot) String() string {
	return fmt.Sprintf("%s %s at %s: %d after %s, over after %s: %v %s",
		s.Method, s.Target, s.Began.Format("15:04:05.000"), s.Code, s.Head.Round(time.Millisecond), s.Took.Round(time.Millisecond), s.Err, s.Text)
}

// Judge fails the test when more than most requests are bad, and returns how many are.
func Judge(t *testing.T, shots []Shot, most int, bad func(*Shot) bool) int {
	t.Helper()
	if len(shots) < 10 {
		t.Fatalf("%d requests were sent", len(shots))
	}
	var worse []string
	slowest := &shots[0]
	for i := range shots {
		s := &shots[i]
		if bad(s) {
			worse = append(worse, s.String())
		}
		if s.Head > slowest.Head {
			slowest = s
		}
	}
	t.Logf("%d requests, %d bad; half took %s, 99%% took %s at most; the slowest head: %s", len(shots), len(worse),
		Percentile(shots, 0.5).Round(time.Millisecond), Percentile(shots, 0.99).Round(time.Millisecond), strings.TrimSpace(slowest.String()))
	first := strings.Join(worse[:min(len(worse), 10)], "\n")
	switch {
	case len(worse) > most:
		t.Errorf("%d of %d requests failed or took too long, want %d at most:\n%s", len(worse), len(shots), most, first)
	case len(worse) > 0:
		t.Logf("the first of them\n%s", first)
	}
	return len(worse)
}

// Percentile is one of the times that requests took.
func Percentile(shots []Shot, p float64) time.Duration {
	var all []time.Duration
	for _, s := range shots {
		all = append(all, s.Took)
	}
	slices.Sort(all)
	return all[min(int(p*float64(len(all))), len(all)-1)]
}
