//go:build e2e

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
)

const (
	// rate is how many requests begin a second, whatever became of those before.
	rate = 50
	// latest is when each must have been answered: 2 s is the bound.
	latest = 2 * time.Second
	// objects is how many ConfigMaps are read, written and watched.
	objects = 20
)

// path is where those are.
const path = "/api/v1/namespaces/fleet/configmaps"

// payload makes an event longer than a frame of HTTP/2, so that a cut would fall inside of one.
var payload = strings.Repeat("x", 20<<10)

// shot is a request and what became of it.
type shot struct {
	what  string
	began time.Time
	took  time.Duration
	code  int // 0: no answer, or half of one
	why   string
	again int // how often it was repeated
}

// ask is one try. Its client's patience ends it, not the load's end.
func (s *shot) ask(c *http.Client, method, url, body string) {
	reply, err := ask.Do(context.Background(), c, method, url, http.Header{"Content-Type": {"application/merge-patch+json"}}, body)
	if err != nil {
		s.code, s.why = 0, err.Error()
		return
	}
	s.code, s.why = reply.Code, ""
	if s.code >= 300 {
		s.why = reply.Body
	}
}

// turnedAway reports whether kube-apiserver itself, which closes its door a moment before it says
// so to its connections, asks for the request again. client-go repeats it (rest.withRetry),
// directly and through anybody; what Fairlead itself answers is not repeated here. Its time goes
// on.
func (s *shot) turnedAway() bool {
	return s.code == http.StatusServiceUnavailable && strings.Contains(s.why, `"apiserver is shutting down"`) && s.again < 10 // as client-go
}

func (s shot) bad() bool { return s.code != http.StatusOK || s.took > latest }

func (s shot) String() string {
	return fmt.Sprintf("%s at %s: %d after %s %s", s.what, s.began.Format("15:04:05.000"), s.code, s.took.Round(time.Millisecond), s.why)
}

type load struct {
	clients []*http.Client // in turns; each has one connection over HTTP/2, which stays
	url     string

	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex // guards all
	all  []shot
}

func (l *load) start(ctx context.Context) {
	l.all = nil
	ctx, l.stop = context.WithCancel(ctx)
	l.done.Go(func() { // ends with ctx
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				l.done.Go(func() { l.shoot(i) }) // ends with its client's patience
			case <-ctx.Done():
				return
			}
		}
	})
}

// shoot reads an object, writes one, or lists what is small.
func (l *load) shoot(i int) {
	method, url, body := http.MethodGet, fmt.Sprintf("%s%s/object-%d", l.url, path, i%objects), ""
	switch i % 4 {
	case 1:
		method, body = http.MethodPatch, fmt.Sprintf(`{"data":{"n":"%d"}}`, i)
	case 3:
		url = l.url + "/api/v1/namespaces/fleet/serviceaccounts"
	}
	s := shot{what: method + " " + strings.TrimPrefix(url, l.url), began: time.Now()}
	for ask := true; ask; {
		s.ask(l.clients[i%len(l.clients)], method, url, body)
		if ask = s.turnedAway(); ask {
			s.again++
			<-time.After(time.Second) // what its Retry-After says
		}
	}
	s.took = time.Since(s.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
}

// end stops the load, waits for the requests under way, and returns how many were not answered well
// and in time. More than most of them fail the test.
func (l *load) end(t *testing.T, most int) int {
	t.Helper()
	l.stop()
	l.done.Wait()
	slices.SortFunc(l.all, func(a, b shot) int { return a.began.Compare(b.began) })
	var bad []string
	away := 0
	for _, s := range l.all {
		away += min(s.again, 1)
		if s.bad() {
			bad = append(bad, s.String())
		}
	}
	slices.SortFunc(l.all, func(a, b shot) int { return cmp.Compare(a.took, b.took) })
	n := len(l.all)
	if n == 0 {
		t.Fatal("nothing was asked")
	}
	t.Logf("%d requests, %d turned away once by kube-apiserver, %d failed or late; half within %s, 99%% within %s, the slowest %s", n, away, len(bad),
		l.all[n/2].took.Round(time.Millisecond), l.all[n*99/100].took.Round(time.Millisecond), strings.TrimSpace(l.all[n-1].String()))
	if len(bad) > 0 {
		t.Logf("the first of them\n%s", strings.Join(bad[:min(len(bad), 10)], "\n"))
	}
	if len(bad) > most {
		t.Errorf("%d of %d requests failed or took longer than %s, want %d at most", len(bad), n, latest, most)
	}
	return len(bad)
}
