package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

const (
	// settling is until the first probes and documents are over, the last garbage was collected,
	// and buffers and memory were given back.
	settling = 25 * time.Second
	// resting is three rounds of probes at the default interval.
	resting = 30 * time.Second
	// perEndpoint is how many APIServices an endpoint has, each endpoint a Service of its own.
	perEndpoint = 5
)

// idleness is what Fairlead costs while nobody asks it anything. APIServices come from a folder, as
// those of scenario apiservices.
func idleness() scenario {
	return scenario{name: "rest", about: "nobody asks; 0, 10, 1,000 (with -full 10,000) APIServices, five on an endpoint", run: func(ctx context.Context, w *world, o *options, r *results) error {
		sizes := []int{0, 10, 1000}
		if o.full {
			sizes = append(sizes, perEndpoint*addresses)
		}
		for _, n := range sizes {
			if err := w.rest(ctx, o, r, n); err != nil {
				return fmt.Errorf("with %d: %w", n, err)
			}
		}
		return nil
	}}
}

func (w *world) rest(ctx context.Context, o *options, r *results, n int) error {
	endpoints := make([]string, n/perEndpoint)
	for i := range endpoints {
		endpoints[i] = addressOf(w.backend, i)
	}
	dir := filepath.Join(w.Dir(), fmt.Sprintf("rest-%d", n))
	if err := w.writeManifests(dir, n, endpoints, ""); err != nil {
		return err
	}
	p := &peer{name: filepath.Base(dir)}
	if err := w.launch(ctx, p, "--registry=dir:"+dir); err != nil {
		return err
	}
	defer p.part.Kill()
	for round := range min(o.rounds, 3) {
		s, err := w.rested(ctx, p, n)
		if err != nil {
			return err
		}
		r.add("rest", fmt.Sprintf("%d APIServices", n), round, s)
	}
	return nil
}

// rested starts a Fairlead anew and lets it come to rest.
func (w *world) rested(ctx context.Context, p *peer, n int) (s sample, err error) {
	const patience = 5 * time.Minute // 10,000 took one until they were available
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Its log tells who is available: to ask it for metrics costs what a start costs. What an
	// earlier life said does not count.
	p.part.Kill()
	if err := os.Truncate(p.part.LogFile(), 0); err != nil {
		return s, err
	}
	began := time.Now()
	if err := p.part.Restart(ctx); err != nil {
		return s, err
	}
	for {
		log, err := os.ReadFile(p.part.LogFile())
		if err != nil {
			return s, err
		}
		if availableIn(log) >= n {
			break
		}
		if err := pause(ctx, time.Second/2); err != nil {
			return s, err
		}
	}
	s.Available = time.Since(began).Seconds()
	var before, after usage
	err = errors.Join(pause(ctx, settling), before.read(p), pause(ctx, resting), after.read(p))
	took := after.at.Sub(before.at).Seconds()
	s.Share, s.Wakes, s.Resident = 100*(after.cpu-before.cpu).Seconds()/took, float64(after.runs-before.runs)/took, float64(after.resident)/(1<<20)
	if err != nil {
		return s, err
	}
	apis, err := w.get(ctx, p.front.Endpoint, "/apis")
	s.APIs = float64(len(apis)) / 1024
	return s, err
}

// availableIn counts ours that are available according to a log.
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

// usage is what a peer has used until now.
type usage struct {
	at       time.Time
	cpu      time.Duration
	runs     int64 // how often its threads were given a processor
	resident int64
}

func (u *usage) read(p *peer) (err error) {
	u.at = time.Now()
	if u.cpu, u.runs, err = scheduled(p.part.PID()); err != nil {
		return err
	}
	u.resident, err = residentOf(p.part.PID(), all)
	return err
}
