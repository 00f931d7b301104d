package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// settled waits until every APIService is available, and then until the first probes and polls are over.
func (w *world) settled(ctx context.Context, n int) error {
	begun := time.Now()
	// A scrape of ten thousand APIServices is megabytes: asked for twenty times a second, it would be much of what is measured.
	every := time.Duration(max(n, 500)) * 100 * time.Microsecond
	err := until(ctx, every, patience, func() error {
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
	w.available = w.ready + time.Since(begun)
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
