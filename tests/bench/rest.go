package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/try"
)

const (
	// settling is until the first probes and documents are complete, and garbage, buffers and
	// memory are released.
	settling = 25 * time.Second
	// resting is three rounds of probes at the default interval.
	resting = 30 * time.Second
	// perEndpoint is the number of APIServices per endpoint. Each endpoint has its own Service.
	perEndpoint = 5
)

// idleness measures what Fairlead costs without requests. APIServices come from a folder, as in
// scenario apiservices.
func idleness(ctx context.Context, w *world) {
	for _, n := range []int{0, 10, 1000, perEndpoint * addresses} {
		if n <= 1000 || w.o.full {
			w.rest(ctx, n)
		}
	}
}

func (w *world) rest(ctx context.Context, n int) {
	endpoints := make([]string, n/perEndpoint)
	for i := range endpoints {
		endpoints[i] = addressOf(w.backend, i)
	}
	dir := filepath.Join(w.Dir(), fmt.Sprintf("rest-%d", n))
	w.writeManifests(dir, n, endpoints, "")
	p := &peer{name: filepath.Base(dir)}
	w.launch(ctx, p, "--registry=dir:"+dir)
	defer p.part.Kill()
	for round := range min(w.o.rounds, 3) {
		w.r.add("rest", fmt.Sprintf("%d APIServices", n), round, w.rested(ctx, p, n))
	}
}

// rested restarts a Fairlead and waits until it is idle.
func (w *world) rested(ctx context.Context, p *peer, n int) (s sample) {
	const patience = 5 * time.Minute // 10,000 needed one minute to become available
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Availability is read from its log: its metrics page costs as much as a start. The previous
	// run's log is dropped.
	p.part.Kill()
	try.Do(os.Truncate(p.part.LogFile(), 0))
	began := time.Now()
	try.Do(p.part.Restart(ctx))
	for availableIn(try.Get(os.ReadFile(p.part.LogFile()))) < n {
		pause(ctx, time.Second/2)
	}
	s.Available = time.Since(began).Seconds()
	pause(ctx, settling)
	began = time.Now()
	before, woken := scheduled(p.part.PID())
	pause(ctx, resting)
	took := time.Since(began).Seconds()
	after, wakes := scheduled(p.part.PID())
	s.Share, s.Wakes, s.Resident = 100*(after-before).Seconds()/took, float64(wakes-woken)/took, float64(p.resident(all))/(1<<20)
	return s
}

// availableIn counts the bench's APIServices that are available according to a log.
func availableIn(log []byte) int {
	changed := regexp.MustCompile(`msg="availability changed" apiservice=(\S*` + group + `) status=(\w+)`)
	up := map[string]bool{}
	for _, m := range changed.FindAllSubmatch(log, -1) {
		if name := string(m[1]); string(m[2]) == "True" {
			up[name] = true
		} else {
			delete(up, name)
		}
	}
	return len(up)
}
