//go:build e2e

package faults

import (
	"cmp"
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

// shot is one request and what became of it.
type shot struct {
	method, target string
	began          time.Time
	head           time.Duration // from began to the response head; zero: none came
	took           time.Duration // from began to the end of the response
	code           int
	text           string // beginning of the body of an answer that says what is wrong
	err            error
}

// failed says that the client got no answer, or one that refuses what is right.
func (s *shot) failed() bool { return s.head == 0 || s.code >= 400 }

// cut says that the answer ended before its end, and that the client could tell.
func (s *shot) cut() bool { return s.head != 0 && s.err != nil }

// watch says that it was one.
func (s *shot) watch() bool { return strings.Contains(s.target, "?watch=1") }

func (s *shot) String() string {
	return fmt.Sprintf("%s %s at %s: %d after %s, over after %s: %v %s",
		s.method, s.target, s.began.Format("15:04:05.000"), s.code, s.head.Round(time.Millisecond), s.took.Round(time.Millisecond), s.err, s.text)
}

// load sends requests at a steady rate, whether or not the earlier ones were answered: a hang must
// not slow down those who find out about it.
type load struct {
	interval time.Duration
	client   []*http.Client // taken in turns; each has one connection
	make     func(i int) (method, url, body string)
	// check looks at the whole body of an answer that was not refused. Nil: bodies are thrown away.
	check func(body []byte) error

	stopping chan struct{}
	ended    chan struct{}
	mu       sync.Mutex // guards shots
	shots    []shot
}

// patience is how long a request may take in all before the test gives up on it: longer than
// anything is allowed to.
const patience = 40 * time.Second

// start begins to send.
func (l *load) start(t *testing.T) *load {
	t.Helper()
	l.stopping, l.ended = make(chan struct{}), make(chan struct{})
	go l.run(t.Context())
	return l
}

func (l *load) run(ctx context.Context) {
	defer close(l.ended)
	var flying sync.WaitGroup
	defer flying.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for i := 0; ; i++ {
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-l.stopping:
			return
		case <-ctx.Done():
			return
		}
		next = next.Add(l.interval)
		flying.Go(func() {
			s := l.shoot(ctx, i)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.shots = append(l.shots, s)
		})
	}
}

func (l *load) shoot(ctx context.Context, i int) (s shot) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	method, url, body := l.make(i)
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return shot{err: err}
	}
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	s = shot{method: method, target: req.URL.RequestURI(), began: time.Now()}
	defer func() { s.took = time.Since(s.began) }()
	res, err := l.client[i%len(l.client)].Do(req)
	if err != nil {
		s.err = err
		return s
	}
	defer res.Body.Close()
	s.head, s.code = time.Since(s.began), res.StatusCode
	switch {
	case s.code >= 400:
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		s.text = string(text)
	case l.check != nil:
		var whole []byte
		if whole, s.err = io.ReadAll(res.Body); s.err == nil {
			if err := l.check(whole); err != nil {
				s.code, s.text = 999, "a whole answer that is none: "+err.Error() // never to be seen
			}
		}
	default:
		_, s.err = io.Copy(io.Discard, res.Body)
	}
	return s
}

// stop ends it, waits for the requests under way and returns all.
func (l *load) stop() []shot {
	close(l.stopping)
	<-l.ended
	slices.SortFunc(l.shots, func(a, b shot) int { return a.began.Compare(b.began) })
	return l.shots
}

// mustSucceed fails the test for requests that failed, and those that took too long for their head.
// Zero longest: any time will do.
func mustSucceed(t *testing.T, shots []shot, longest time.Duration) {
	t.Helper()
	if len(shots) < 10 {
		t.Fatalf("%d requests were sent", len(shots))
	}
	var bad []string
	slowest := &shots[0]
	for i := range shots {
		s := &shots[i]
		if s.failed() || longest > 0 && s.head > longest {
			bad = append(bad, s.String())
		}
		if s.head > slowest.head {
			slowest = s
		}
	}
	t.Logf("%d requests, %d failed, the slowest head took %s (at %s)", len(shots), len(bad), slowest.head.Round(time.Millisecond), slowest.began.Format("15:04:05.000"))
	if len(bad) > 0 {
		t.Errorf("%d of %d requests failed or took too long:\n%s", len(bad), len(shots), strings.Join(bad[:min(len(bad), 10)], "\n"))
	}
}

// mustBeWhole fails the test for answers that were cut.
func mustBeWhole(t *testing.T, shots []shot) {
	t.Helper()
	for _, s := range shots {
		if s.cut() {
			t.Errorf("cut: %s", &s)
		}
	}
}

// percentile of the times to the response head.
func percentile(shots []shot, p float64) time.Duration {
	var all []time.Duration
	for _, s := range shots {
		if s.head > 0 {
			all = append(all, s.head)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.SortFunc(all, cmp.Compare[time.Duration])
	return all[min(int(p*float64(len(all))), len(all)-1)]
}

// reads asks for one object of a backend after the other.
func (d *door) reads(b *backend) func(int) (string, string, string) {
	return func(i int) (string, string, string) {
		return http.MethodGet, fmt.Sprintf("%s%s/widget-%03d", d.Endpoint.URL, b.widgets(), i%100), ""
	}
}

// mixed reads, writes and watches a backend in turns. A watch ends by itself after a second.
func (d *door) mixed(b *backend) func(int) (string, string, string) {
	read := d.reads(b)
	return func(i int) (string, string, string) {
		switch i % 4 {
		case 1:
			return http.MethodPost, d.Endpoint.URL + b.widgets(), `{"metadata":{"generateName":"made-"},"spec":{"payload":"x"}}`
		case 3:
			return http.MethodGet, d.Endpoint.URL + b.widgets() + "?watch=1&resourceVersion=1&timeoutSeconds=1", ""
		}
		return read(i)
	}
}

// clients are n clients with a connection each.
func (w *world) clients(n int) []*http.Client {
	var list []*http.Client
	for range n {
		list = append(list, w.client())
	}
	return list
}
