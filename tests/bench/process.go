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

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
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

// cpu returns zero for a peer that is no process.
func (p *peer) cpu() (cpu time.Duration) {
	if p.part != nil {
		cpu, _ = scheduled(p.part.PID())
	}
	return cpu
}

// The kinds of resident memory: all, or anonymous pages only. The others are pages of files, which come and go.
const (
	all = "VmRSS:"
	own = "RssAnon:"
)

// resident returns KB.
func (p *peer) resident(kind string) float64 {
	status := string(try.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.part.PID()))))
	_, rest, _ := strings.Cut(status, "\n"+kind)
	return try.Get(strconv.ParseFloat(strings.Fields(rest)[0], 64))
}

func machine() string {
	info, _ := os.ReadFile("/proc/cpuinfo") // empty if unknown, as other load
	_, model, _ := strings.Cut(string(info), "model name\t: ")
	model, _, _ = strings.Cut(model, "\n")
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%d × %s, %s, load at start %s", runtime.NumCPU(), model, runtime.Version(), strings.TrimSpace(string(load)))
}

// keep saves a page of a Fairlead's admin port as a profile.
func (w *world) keep(ctx context.Context, p *peer, page, name string) {
	client := try.Get(rest.HTTPClientFor(p.front.Admin.RESTConfig(w.Admin())))
	defer client.CloseIdleConnections()
	text := try.Get(ask.Get(ctx, client, p.front.Admin.URL+page))
	try.Do(os.MkdirAll(w.o.out, 0o750))
	try.Do(os.WriteFile(filepath.Join(w.o.out, name+".pprof"), []byte(text), 0o600))
}
