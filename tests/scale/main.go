// Command scale is the simulation behind docs/scaling.md: one Fairlead with --registry=dir: over ever more APIServices, whose backends are extension servers in this process,
// one for five of them, and then with ever more watches. It prints a table of what Fairlead's process used.
//
//	go run ./tests/scale                       # the table of docs/scaling.md, some two minutes
//	go run ./tests/scale -apiservices 100 -watches 1000
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
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	apiServices := flag.String("apiservices", "10,1000,10000", "`numbers` of APIServices, with commas")
	watches := flag.String("watches", "1000,10000", "`numbers` of watches, with commas, over 1,000 APIServices")
	flag.Parse()
	if err := run(ctx, *apiServices, *watches, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1) //nolint:gocritic // the signal handler dies with the process
	}
}

func run(ctx context.Context, apiServices, watches string, out io.Writer) error {
	entries, err1 := numbers(apiServices)
	open, err2 := numbers(watches)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	bin, remove, err := build(ctx)
	if err != nil {
		return err
	}
	defer remove()
	load, _ := os.ReadFile("/proc/loadavg") // what else ran; empty: nobody knows
	fmt.Fprintf(out, "%d processors, %s, load at start %s\n", runtime.NumCPU(), runtime.Version(), strings.TrimSpace(string(load)))
	fmt.Fprint(out, "| APIServices | endpoints | ready after | build of the table | memory | processor, idle | /apis (v2) | GET, processor |\n|---|---|---|---|---|---|---|---|\n")
	for _, n := range entries {
		r, err := table(ctx, bin, n)
		if err != nil {
			return fmt.Errorf("%d APIServices: %w", n, err)
		}
		fmt.Fprintln(out, r)
	}
	fmt.Fprint(out, "\n| watches | connections | memory each | processor, idle |\n|---|---|---|---|\n")
	for _, n := range open {
		r, err := idle(ctx, bin, n)
		if err != nil {
			return fmt.Errorf("%d watches: %w", n, err)
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
func table(ctx context.Context, bin string, n int) (string, error) {
	w, err := start(ctx, bin, n)
	if err != nil {
		return "", err
	}
	defer w.close()
	if err := w.settled(ctx, n); err != nil {
		return "", err
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
	each, err := w.gets(ctx, n)
	if err != nil {
		return "", err
	}
	metrics, err := w.metrics(ctx)
	if err != nil {
		return "", err
	}
	built := metrics["fairlead_registry_build_seconds_sum"] / metrics["fairlead_registry_build_seconds_count"]
	return fmt.Sprintf("| %d | %d | %.1f s | %.2f ms (mean of %.0f) | %d MiB | %.1f %% of one | %d KiB | %.0f µs |",
		n, services(n), w.ready.Seconds(), built*1000, metrics["fairlead_registry_build_seconds_count"], memory>>20, cpu*100, size>>10, float64(each.Microseconds())), nil
}

// idle measures what n watches cost a Fairlead over 1,000 APIServices when nothing happens.
func idle(ctx context.Context, bin string, n int) (string, error) {
	const perConnection = 100 // below what a client may open on one
	w, err := start(ctx, bin, 1000)
	if err != nil {
		return "", err
	}
	defer w.close()
	if err := w.settled(ctx, 1000); err != nil {
		return "", err
	}
	conns := max(n/perConnection, 1)
	before, after, cpu, err := w.watch(ctx, conns, n/conns)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("| %d | %d | %.1f KB | %.1f %% of one |", n, conns, float64(after-before)/float64(n)/1000, cpu*100), nil
}
