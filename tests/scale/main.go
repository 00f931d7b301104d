// Command scale is the simulation behind docs/scaling.md: one Fairlead with --registry=dir: over ever more APIServices, whose backends are extension servers in this process,
// one for five of them. It prints a table of what Fairlead's process used.
//
//	go run ./tests/scale                       # the table of docs/scaling.md, some three minutes
//	go run ./tests/scale -apiservices 10000 -probe-interval 60s # 2 GB; more than two processors
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	apiServices := flag.String("apiservices", "10,100,1000", "`numbers` of APIServices, with commas")
	interval := flag.Duration("probe-interval", 0, "annotation fairlead.dev/probe-interval of every APIService; 0: none")
	flag.Parse()
	if err := run(ctx, *apiServices, *interval, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1) //nolint:gocritic // the signal handler dies with the process
	}
}

func run(ctx context.Context, apiServices string, interval time.Duration, out io.Writer) error {
	entries, err := numbers(apiServices)
	if err != nil {
		return err
	}
	bin, remove, err := build(ctx)
	if err != nil {
		return err
	}
	defer remove()
	load, _ := os.ReadFile("/proc/loadavg") // what else ran; empty: nobody knows
	fmt.Fprintf(out, "%d processors, %s, load at start %s\n", runtime.NumCPU(), runtime.Version(), strings.TrimSpace(string(load)))
	fmt.Fprint(out, "| APIServices | endpoints | ready after | all available after | build of the table | memory | processor, idle | /apis (v2) |\n|---|---|---|---|---|---|---|---|\n")
	for _, n := range entries {
		r, err := table(ctx, bin, n, interval)
		if err != nil {
			return fmt.Errorf("%d APIServices: %w", n, err)
		}
		fmt.Fprintln(out, r)
	}
	return nil
}

func numbers(list string) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// table measures a Fairlead over n APIServices.
func table(ctx context.Context, bin string, n int, interval time.Duration) (string, error) {
	w, err := start(ctx, bin, n, interval)
	if err != nil {
		return "", err
	}
	defer w.close()
	if err := w.settled(ctx, n); err != nil {
		return "", errors.Join(err, w.log())
	}
	cpu, err := w.idle(ctx, 10*time.Second)
	if err != nil {
		return "", err
	}
	memory, err := w.memory()
	if err != nil {
		return "", err
	}
	size, err := w.document(ctx)
	if err != nil {
		return "", err
	}
	metrics, err := w.metrics(ctx)
	if err != nil {
		return "", err
	}
	built := metrics["fairlead_registry_build_seconds_sum"] / metrics["fairlead_registry_build_seconds_count"]
	return fmt.Sprintf("| %d | %d | %.1f s | %.1f s | %.2f ms (mean of %.0f) | %d MiB | %.1f %% of one | %d KiB |",
		n, services(n), w.ready.Seconds(), w.available.Seconds(), built*1000, metrics["fairlead_registry_build_seconds_count"], memory>>20, cpu*100, size>>10), nil
}
