// Package volley sends requests at a steady rate, whether or not earlier ones were answered: a
// server that hangs must not slow down its own measurement.
//
// Set a Load's fields before Start. Any goroutine may call its methods.
package volley

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// Pace calls do at a fixed interval, each time on a new goroutine, until ctx ends, and then waits
// for all calls. After a stall it catches up.
func Pace(ctx context.Context, every time.Duration, do func(i int)) {
	var flying sync.WaitGroup
	defer flying.Wait()
	next := time.Now()
	for i := 0; ; i++ {
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		next = next.Add(every)
		flying.Go(func() { do(i) })
	}
}

// Load sends requests and keeps their results.
type Load struct {
	Every   time.Duration  // the interval between requests
	Clients []*http.Client // they take turns
	// Make returns request i. An empty body means none.
	Make   func(i int) (method, url, body string)
	Header http.Header      // added to every request. Nil means no fields but Content-Type.
	Again  func(*Shot) bool // reports whether a real client would repeat the request a second later. Nil means never.

	stop   context.CancelFunc
	flying sync.WaitGroup
	mu     sync.Mutex // guards shots
	shots  []Shot
}

// patience limits a request. It exceeds every limit of a test, and the minute that Fairlead and
// kube-apiserver give a request.
const patience = 70 * time.Second

// Start sends requests until Stop or the end of the test. A stopped Load may be started again.
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

// Stop stops sending, waits for pending requests, and returns all in the order in which they began.
func (l *Load) Stop() []Shot {
	l.stop()
	l.flying.Wait()
	return slices.SortedFunc(slices.Values(l.Ended()), func(a, b Shot) int { return a.Began.Compare(b.Began) })
}

// Ended returns the requests that have ended so far, in the order in which they ended.
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

// try sends the request once and sets the result in s.
func (l *Load) try(ctx context.Context, s *Shot, c *http.Client, url, body string) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.Head, s.Code, s.Text, s.Err = 0, 0, "", nil
	defer try.Catch(&s.Err)
	req := try.Get(http.NewRequestWithContext(ctx, s.Method, url, strings.NewReader(body)))
	s.Target = req.URL.RequestURI()
	maps.Copy(req.Header, l.Header)
	switch {
	case body == "":
		req.Body = nil
	case s.Method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	default:
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.Do(req)
	try.Do(err)
	defer func() { _ = res.Body.Close() }()
	s.Head, s.Code = time.Since(s.Began), res.StatusCode
	if s.Code < 400 {
		try.Get(io.Copy(io.Discard, res.Body))
		return
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	s.Text = string(text)
}

// Shot is one request and its result.
type Shot struct {
	// Method and Target are the request's, and Began is when it was sent first.
	Method, Target string
	Began          time.Time
	Head           time.Duration // the time from Began to the head of the response. Zero means that none arrived.
	Took           time.Duration // the time from Began to the end of the response
	Code           int           // the status. Zero means that no head arrived.
	Text           string        // the beginning of an error response's body
	Err            error         // why the response is missing or incomplete. Nil means that it is complete.
	Repeated       int           // counts the repetitions
}

// Failed reports whether the client got no response or an error.
func (s *Shot) Failed() bool { return s.Head == 0 || s.Code >= 400 }

// Cut reports whether the response ended early, in a way that the client could see.
func (s *Shot) Cut() bool { return s.Head != 0 && s.Err != nil }

// String returns everything about the request on one line.
func (s *Shot) String() string {
	return fmt.Sprintf("%s %s at %s: %d after %s, ended after %s: %v %s",
		s.Method, s.Target, s.Began.Format("15:04:05.000"), s.Code, s.Head.Round(time.Millisecond), s.Took.Round(time.Millisecond), s.Err, s.Text)
}

// Judge fails the test if more than most requests are bad, and returns how many are.
func Judge(t *testing.T, shots []Shot, most int, bad func(*Shot) bool) int {
	t.Helper()
	if len(shots) < 10 {
		t.Fatalf("%d requests were sent", len(shots))
	}
	var worse []string
	for i := range shots {
		if s := &shots[i]; bad(s) {
			worse = append(worse, s.String())
		}
	}
	slowest := slices.MaxFunc(shots, func(a, b Shot) int { return cmp.Compare(a.Head, b.Head) })
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

// Percentile returns the p-quantile (0 to 1) of Took.
func Percentile(shots []Shot, p float64) time.Duration {
	var all []time.Duration
	for _, s := range shots {
		all = append(all, s.Took)
	}
	slices.Sort(all)
	return all[min(int(p*float64(len(all))), len(all)-1)]
}

// Watch keeps one watch open at a time, without client-go, so that it sees how each body ends.
type Watch struct {
	// Client requests URL.
	Client *http.Client
	URL    string

	events atomic.Int64
	mu     sync.Mutex // guards ends
	ends   []End
}

// End is how a watch ended.
type End struct {
	Rest int   // the length of an unfinished event
	Err  error // nil if the body ended cleanly between two events
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for {
		rest, err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.ends = append(w.ends, End{rest, err})
		w.mu.Unlock()
		select {
		case <-time.After(100 * time.Millisecond): // a client's initial back-off
		case <-ctx.Done():
		}
	}
}

func (w *Watch) once(ctx context.Context) (rest int, err error) {
	res, err := ask.Open(ctx, w.Client, w.URL, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	for body := bufio.NewReader(res.Body); ; w.events.Add(1) {
		line, err := body.ReadBytes('\n')
		if rest := len(bytes.TrimSpace(line)); errors.Is(err, io.EOF) && rest == 0 {
			return 0, nil
		} else if err != nil {
			return rest, err
		}
	}
}

// Events returns the number of events so far.
func (w *Watch) Events() int64 { return w.events.Load() }

// Ends returns how watches have ended since the last call.
func (w *Watch) Ends() []End {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.ends
	w.ends = nil
	return list
}
