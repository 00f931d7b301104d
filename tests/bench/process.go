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

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// scheduled is the processor time of all living threads of a process, by the scheduler's own count
// (utime and stime come in ticks of 10 ms), and how often they were given a processor.
func scheduled(pid int) (cpu time.Duration, runs int64) {
	for _, t := range try.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))) {
		b, err := os.ReadFile(t)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has just ended
		}
		var ran, waited, times int64
		try.Get(fmt.Sscan(string(b), &ran, &waited, &times))
		cpu += time.Duration(ran)
		runs += times
	}
	if cpu == 0 {
		try.Do(fmt.Errorf("process %d has used no processor time: the kernel keeps no scheduler statistics, or it has ended", pid))
	}
	return cpu, runs
}

func (p *peer) cpu() time.Duration {
	cpu, _ := scheduled(p.part.PID())
	return cpu
}

// What of a process's memory is resident: all, or what it has made itself. The rest are pages of
// its file, which come and go.
const (
	all = "VmRSS:"
	own = "RssAnon:"
)

func (p *peer) resident(what string) int64 {
	return 1024 * int64(figure(try.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.part.PID()))), what))
}

// figure is the number in the line of a page that begins with a name.
func figure(page []byte, name string) float64 {
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return try.Get(strconv.ParseFloat(strings.Fields(rest)[0], 64))
		}
	}
	try.Do(fmt.Errorf("there is no line %q", name))
	return 0
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

func (w *world) admin(ctx context.Context, p *peer, path string) []byte {
	return w.get(ctx, p.front.Admin, path)
}

// get asks as the administrator, for aggregated discovery where there is such a thing.
func (w *world) get(ctx context.Context, from cluster.Endpoint, path string) []byte {
	client := try.Get(rest.HTTPClientFor(from.RESTConfig(w.Admin())))
	defer client.CloseIdleConnections()
	resp, err := ask.Open(ctx, client, from.URL+path, http.Header{"Accept": {discovery.AcceptV2 + ",*/*"}})
	try.Do(err)
	defer resp.Body.Close()
	return try.Get(io.ReadAll(resp.Body))
}

func (w *world) mallocs(ctx context.Context, p *peer) float64 {
	return figure(w.admin(ctx, p, "/metrics"), "go_memstats_mallocs_total ")
}
