package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// cpuOf is the processor time of all living threads of a process, by the scheduler's own count:
// utime and stime come in ticks of 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	cpu, _, err := scheduled(pid)
	return cpu, err
}

// scheduled is that, and how often they were given a processor.
func scheduled(pid int) (cpu time.Duration, runs int64, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, 0, err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has just ended
		}
		var ran, waited, times int64
		if _, err := fmt.Sscan(string(b), &ran, &waited, &times); err != nil {
			return 0, 0, fmt.Errorf("reading %s: %w", t, err)
		}
		cpu += time.Duration(ran)
		runs += times
	}
	if cpu == 0 {
		return 0, 0, fmt.Errorf("process %d has used no processor time: the kernel keeps no scheduler statistics, or it has ended", pid)
	}
	return cpu, runs, nil
}

// What of a process's memory is resident: all, or what it has made itself. The rest are pages of
// its file, which come and go.
const (
	all = "VmRSS:"
	own = "RssAnon:"
)

// residentOf is a process's resident memory in bytes.
func residentOf(pid int, what string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, what); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no resident memory", pid)
}

// machine says what the figures were measured on.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimLeft(strings.TrimSpace(name), ": \t")
				break
			}
		}
	}
	load, _ := os.ReadFile("/proc/loadavg") // what else ran; empty: nobody knows
	return fmt.Sprintf("%d × %s, %s, load at start %s", runtime.NumCPU(), model, runtime.Version(), strings.TrimSpace(string(load)))
}

// admin gets a page of Fairlead's own.
func (w *world) admin(ctx context.Context, p *peer, path string) ([]byte, error) {
	return w.get(ctx, p.front.Admin, path)
}

// get asks as the administrator, for aggregated discovery where there is such a thing.
func (w *world) get(ctx context.Context, from cluster.Endpoint, path string) ([]byte, error) {
	client, err := rest.HTTPClientFor(from.RESTConfig(w.Admin()))
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.URL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", discovery.AcceptV2+",*/*")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("getting %s: %s", path, resp.Status)
	}
	return b, err
}

// mallocs is how many objects Fairlead has allocated, and how much of that the question itself
// cost.
func (w *world) mallocs(ctx context.Context, p *peer) (n, cost float64, err error) {
	first, err := w.malloc(ctx, p)
	if err != nil {
		return 0, 0, err
	}
	n, err = w.malloc(ctx, p)
	return n, n - first, err
}

func (w *world) malloc(ctx context.Context, p *peer) (float64, error) {
	b, err := w.admin(ctx, p, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, errors.New("there is no go_memstats_mallocs_total")
}
