//go:build e2e

package streams

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

type load struct {
	connections, streams, requests int
	body                           string // file of a POST's body; empty: GET
}

func (l load) String() string {
	method := "GET"
	if l.body != "" {
		method = "POST"
	}
	return fmt.Sprintf("%s %d×%d", method, l.connections, l.streams)
}

// figures are the results of a run.
type figures struct {
	lost    int           // requests without an answer of 2xx
	took    time.Duration // of the whole run
	slowest time.Duration // of its requests
	report  string
}

var (
	finished = regexp.MustCompile(`finished in (\S+),`)
	counted  = regexp.MustCompile(`status codes: (\d+) 2xx`)
	request  = regexp.MustCompile(`time for request: +\S+ +(\S+) `)
)

// run requests url with a bearer token.
func (l load) run(t *testing.T, url, token string) figures {
	t.Helper()
	// Longer than the minute that Fairlead and kube-apiserver give a request, so that a request
	// that hangs is counted.
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := []string{
		"-n", strconv.Itoa(l.requests), "-c", strconv.Itoa(l.connections), "-m", strconv.Itoa(l.streams),
		"-H", "Authorization: Bearer " + token,
	}
	if l.body != "" {
		args = append(args, "-d", l.body, "-H", "Content-Type: application/json")
	}
	out, err := exec.CommandContext(ctx, "h2load", append(args, url)...).CombinedOutput()
	if err != nil {
		t.Fatalf("h2load %s: %v\n%s", l, err, out)
	}
	f := figures{report: string(out)}
	f.took, f.slowest = duration(t, finished, out), duration(t, request, out)
	m := counted.FindSubmatch(out)
	if m == nil {
		t.Fatalf("h2load %s counted nothing:\n%s", l, out)
	}
	good := must.Get(strconv.Atoi(string(m[1])))(t)
	f.lost = l.requests - good
	return f
}

// duration returns one of the times of a report.
func duration(t *testing.T, from *regexp.Regexp, report []byte) time.Duration {
	t.Helper()
	m := from.FindSubmatch(report)
	if m == nil {
		t.Fatalf("no %s in:\n%s", from, report)
	}
	d := must.Get(time.ParseDuration(string(m[1])))(t)
	return d
}
