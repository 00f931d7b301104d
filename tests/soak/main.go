// Command soak runs two Fairleads before two kube-apiservers and eighteen extension servers under
// load, breaks things at random for as long as it is told, and keeps account of everything: package
// check says whether it adds up. It prints what was broken, what failed and why, and which
// invariants held; it exits 1 when one did not, and keeps its journal and the logs of all parts
// then.
//
// Faults come from four tormentors (backends, registry, plane, doors), which draw what they do and
// for how many requests from the seed alone. What is drawn can be repeated; how it falls together
// with the load cannot. It needs root and Linux, for a network namespace of its own: Kubernetes
// refuses endpoints on loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/soak/check"
)

// options are the flags.
type options struct {
	minutes        float64
	seed           uint64
	lane, fairlead string
	rate           int
	only           string
	keep           bool
}

func main() {
	var o options
	flag.Float64Var(&o.minutes, "minutes", 20, "how long to break things")
	flag.Uint64Var(&o.seed, "seed", 1, "what to draw faults and requests from")
	flag.StringVar(&o.lane, "lane", "h2", "what Fairlead offers its clients: h2 or http1")
	flag.StringVar(&o.fairlead, "fairlead", "bin/fairlead", "fairlead executable")
	flag.IntVar(&o.rate, "rate", 120, "requests a second")
	flag.StringVar(&o.only, "only", "", "tormentors to let loose, comma-separated: backend, registry, plane, door. Empty: all")
	flag.BoolVar(&o.keep, "keep", false, "keep journal and logs even if all is well")
	flag.Parse()
	if !isolated() {
		os.Exit(isolate())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred that a dead process needs
	}
}

// errViolated is what a soak ends with when an invariant did not hold.
var errViolated = errors.New("an invariant did not hold")

func run(ctx context.Context, o options, out io.Writer) (err error) {
	if err := network(); err != nil {
		return fmt.Errorf("making a network (this needs root): %w", err)
	}
	dir, err := os.MkdirTemp("", "fairlead-soak-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil && !o.keep {
			_ = os.RemoveAll(dir)
			return
		}
		_, _ = fmt.Fprintf(out, "\njournal and logs: %s\nagain: make soak SEED=%d MINUTES=%g LANE=%s\n", dir, o.seed, o.minutes, o.lane)
	}()
	file, err := os.Create(filepath.Join(dir, "journal.jsonl"))
	if err != nil {
		return err
	}
	journal := &check.Journal{Out: file}
	defer func() { err = errors.Join(err, journal.Err(), file.Close()) }()
	journal.Write("start", "seed", o.seed, "minutes", o.minutes, "lane", o.lane, "rate", o.rate, "only", o.only)
	w, err := raise(ctx, o, dir, journal)
	if err != nil {
		return errors.Join(err, w.close())
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.soak(ctx, out); err != nil {
		return err
	}
	if len(w.checker.Violations()) > 0 {
		return errViolated
	}
	return nil
}

// soak is the run: a rest to compare with, the torment, and a rest again.
func (w *world) soak(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // ends with ctx
		if err := w.Wait(ctx); ctx.Err() == nil {
			cancel(fmt.Errorf("a part has died by itself: %w", err))
		}
	}()
	l := newLoad(w)
	w.exercise(ctx, l)
	before, err := w.rest(ctx)
	if err != nil {
		return fmt.Errorf("resting before the soak: %w", err)
	}
	_, _ = fmt.Fprintf(out, "seed %d, %s lane, %g minutes from %s\n", w.o.seed, w.o.lane, w.o.minutes, time.Now().UTC().Format(time.RFC3339))
	l.start(ctx)
	settled := w.settleLocal(ctx, l)
	w.torment(ctx, l)
	w.await(ctx, "everything, at the end", w.wrong)
	l.stop()
	settled()
	w.exercise(ctx, l) // with nothing broken: not one may fail
	after, err := w.rest(ctx)
	if err == nil {
		w.compare(out, before, after)
	}
	err = errors.Join(context.Cause(ctx), err)
	_, _ = fmt.Fprintf(out, "%s\n", strings.Repeat("-", 60))
	return errors.Join(err, w.checker.Report(out))
}

// exercise has the load run until each of its classes has been tried some dozens of times.
func (w *world) exercise(ctx context.Context, l *load) {
	l.start(ctx)
	defer l.stop()
	l.dose(ctx, "", 12*w.o.rate)
}
