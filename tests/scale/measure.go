package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/bench/load"
)

// settled waits until every APIService is available, and then until the first probes and polls are over.
func (w *world) settled(ctx context.Context, n int) error {
	err := until(ctx, 2*time.Minute, func() error {
		all, err := w.metrics(ctx)
		if err != nil {
			return err
		}
		down := 0
		for name, v := range all {
			if strings.HasPrefix(name, "aggregator_unavailable_apiservice{") && v != 0 {
				down++
			}
		}
		if known := all[`fairlead_registry_entries{kind="remote"}`]; known != float64(n) || down > 0 {
			return fmt.Errorf("%v of %d known, %d unavailable", known, n, down)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return pause(ctx, 15*time.Second) // the first round of probes is more crowded than those that follow
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// processor is the time that Fairlead has used so far, by the scheduler's own count.
func (w *world) processor() (time.Duration, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", w.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has just ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %s: %w", t, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// memory is what of Fairlead is resident, in bytes.
func (w *world) memory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no resident memory", w.cmd.Process.Pid)
}

// idle is the share of one processor that Fairlead uses while nobody asks anything.
func (w *world) idle(ctx context.Context, d time.Duration) (float64, error) {
	before, err := w.processor()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := pause(ctx, d); err != nil {
		return 0, err
	}
	after, err := w.processor()
	return (after - before).Seconds() / time.Since(begun).Seconds(), err
}

// document is how large /apis is.
func (w *world) document(ctx context.Context) (int, error) {
	b, err := w.get(ctx, "https://"+w.address+"/apis")
	return len(b), err
}

// gets is what one GET of 1 KB costs, 8 × 8, over n APIServices.
func (w *world) gets(ctx context.Context, n int) (time.Duration, error) {
	l, err := load.Start(ctx, load.Config{
		Address: w.address, TLS: w.tls, Connections: 8, Streams: 8,
		Next: func(c, i int) load.Request { return load.Request{Path: widget((c*n/8 + i) % n)} },
	})
	if err != nil {
		return 0, err
	}
	defer l.Close() //nolint:errcheck // faults are counted below
	if err := pause(ctx, 3*time.Second); err != nil {
		return 0, err
	}
	first, err := w.processor()
	if err != nil {
		return 0, err
	}
	before := l.Snapshot()
	if err := pause(ctx, 5*time.Second); err != nil {
		return 0, err
	}
	last, err := w.processor()
	if err != nil {
		return 0, err
	}
	after := l.Snapshot()
	if after.Faults > 0 || after.Done == before.Done {
		return 0, fmt.Errorf("%d faults, %d answers", after.Faults, after.Done-before.Done)
	}
	return (last - first) / time.Duration(after.Done-before.Done), nil
}

func widget(i int) string {
	return "/apis/" + groupOf(i) + "/v1/namespaces/default/widgets"
}

// watch opens watches, over all APIServices, and returns what Fairlead had resident before and after, and what it uses then. The connections and their first requests are
// in both.
func (w *world) watch(ctx context.Context, conns, streams int) (before, after int64, cpu float64, err error) {
	l, err := load.Start(ctx, load.Config{
		Address: w.address, TLS: w.tls, Connections: conns, Streams: streams, Watch: true,
		First: &load.Request{Path: widget(0)},
		Next:  func(c, i int) load.Request { return load.Request{Path: widget((c*streams+i)%1000) + "?watch=true"} },
	})
	if err != nil {
		return 0, 0, 0, err
	}
	defer l.Close() //nolint:errcheck // faults are counted below
	if before, err = w.memory(); err != nil {
		return 0, 0, 0, err
	}
	l.Go()
	// Every watch sends the one object that there is.
	if err = l.WaitDone(ctx, int64(conns*streams)); err != nil {
		return 0, 0, 0, err
	}
	if cpu, err = w.idle(ctx, 10*time.Second); err != nil {
		return 0, 0, 0, err
	}
	if s := l.Snapshot(); s.Faults > 0 {
		return 0, 0, 0, fmt.Errorf("%d faults", s.Faults)
	}
	after, err = w.memory()
	return before, after, cpu, err
}
