package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// scheduled returns the processor time of a process's living threads, as the scheduler counts it
// (utime and stime have ticks of 10 ms), and how often they ran.
func scheduled(pid int) (cpu time.Duration, runs int64) {
	for _, t := range try.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))) {
		b, err := os.ReadFile(t)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread just ended
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

// The kinds of resident memory: all, or anonymous pages only. The others are pages of files, which
// come and go.
const (
	all = "VmRSS:"
	own = "RssAnon:"
)

func (p *peer) resident(what string) int64 {
	return 1024 * int64(figure(try.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.part.PID()))), what))
}

// figure returns the number in the line of page that begins with name.
func figure(page []byte, name string) float64 {
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return try.Get(strconv.ParseFloat(strings.Fields(rest)[0], 64))
		}
	}
	try.Do(fmt.Errorf("no line begins with %q", name))
	return 0
}

// machine describes the machine of the measurement.
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
	load, _ := os.ReadFile("/proc/loadavg") // other load; empty if unknown
	return fmt.Sprintf("%d × %s, %s, load at start %s", runtime.NumCPU(), model, runtime.Version(), strings.TrimSpace(string(load)))
}

// admin requests a page of a Fairlead's admin port.
func (w *world) admin(ctx context.Context, p *peer, path string) []byte {
	client := try.Get(rest.HTTPClientFor(p.front.Admin.RESTConfig(w.Admin())))
	defer client.CloseIdleConnections()
	return []byte(try.Get(ask.Get(ctx, client, p.front.Admin.URL+path)))
}
