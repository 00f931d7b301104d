//go:build e2e

package recovery

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const (
	// step is how often a poller asks.
	step = 20 * time.Millisecond
	// patience is how long one question may take: longer than the longest a server is down.
	patience = 30 * time.Second
)

// poller asks one URL at a steady rate, whether or not the earlier questions were answered.
type poller struct {
	client *http.Client
	url    string
	header http.Header // nil: none

	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex // guards answers
	all  []answer
}

// answer is when a question was asked and answered, and the status: zero when there was no answer.
type answer struct {
	asked, at time.Time
	code      int
}

func (p *poller) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p.stop, p.all = cancel, nil
	p.done.Go(func() { // ends with ctx
		tick := time.NewTicker(step)
		defer tick.Stop()
		for {
			p.done.Go(func() { p.ask(ctx) }) // ends with its patience
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

func (p *poller) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		panic(err) // a URL of this test
	}
	if p.header != nil {
		req.Header = p.header.Clone()
	}
	a := answer{asked: time.Now()}
	if res, err := p.client.Do(req); err == nil {
		a.code = res.StatusCode
		_ = res.Body.Close()
	}
	if ctx.Err() == context.Canceled {
		return // ended by the test
	}
	a.at = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, a)
}

// end stops the questions and gives up those that are open.
func (p *poller) end() {
	p.stop()
	p.done.Wait()
}

// served is when the first 200 after begun came, and how many questions that were asked after it
// got another answer.
func (p *poller) served(begun time.Time) (first time.Time, relapses int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.all { // in the order in which they were answered
		switch {
		case a.at.Before(begun):
		case a.code == http.StatusOK && first.IsZero():
			first = a.at
		case a.code != http.StatusOK && !first.IsZero() && a.asked.After(first):
			relapses++
		}
	}
	return first, relapses
}

// await waits until each poller has been served.
func await(t *testing.T, all []*poller, since time.Time) {
	t.Helper()
	suite.Eventually(t, patience, "served", func() (bool, string) {
		for _, p := range all {
			if at, _ := p.served(since); at.IsZero() {
				return false, p.url
			}
		}
		return true, ""
	})
}
