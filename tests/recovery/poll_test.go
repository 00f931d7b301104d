//go:build e2e

package recovery

import (
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

const (
	// step is the interval between requests.
	step = 20 * time.Millisecond
	// patience is how long it may take until all are served.
	patience = 30 * time.Second
)

// poller requests one URL.
type poller struct {
	*volley.Load
	url string
}

// poll starts to request a URL.
func poll(t *testing.T, c *http.Client, url string, header http.Header) *poller {
	t.Helper()
	l := &volley.Load{Every: step, Clients: []*http.Client{c}, Header: header, Make: func(int) (string, string, string) { return http.MethodGet, url, "" }}
	return &poller{l.Start(t), url}
}

// served returns when the first 200 after begun came, and how many later requests were not answered
// with 200.
func (p *poller) served(begun time.Time) (first time.Time, relapses int) {
	for _, s := range p.Ended() {
		at := s.Began.Add(s.Took)
		switch {
		case at.Before(begun):
		case s.Code == http.StatusOK && first.IsZero():
			first = at
		case s.Code != http.StatusOK && !first.IsZero() && s.Began.After(first):
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
