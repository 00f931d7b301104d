// Command bench measures Fairlead beside its peers: kube-apiserver's own aggregator, a bare
// httputil.ReverseProxy, HAProxy, nginx and nghttpx, all before the same extension server. It
// starts a cluster on loopback, asks the peers in turns, round after round, and prints what a
// request cost each of them: as ratios taken within a round, because absolute figures drift with
// the machine.
//
// docs/evidence/measurements.md says what the figures mean. `make bench` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs a subcommand: the bench is its own extension server and its own bare proxy.
func command(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "backend":
			return serveBackend(ctx, args[1:])
		case "reverseproxy":
			return serveReverse(ctx, args[1:])
		}
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	return bench(ctx, o, os.Stdout)
}

// options are the flags.
type options struct {
	full      bool
	rounds    int
	duration  time.Duration
	warm      time.Duration
	scenarios string
	peers     string
	bin       string
	base      string
	out       string
	profile   bool
	watches   int
	hold      time.Duration
	tokens    int
	services  int
	least     int
	probes    time.Duration
	args      string
}

func parse(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.BoolVar(&o.full, "full", false, "all scenarios, seven rounds of 2 s (some 45 min); otherwise the first few, three rounds of 1 s (some 2 min)")
	fs.IntVar(&o.rounds, "rounds", 0, "`number` of interleaved rounds (default 3, with -full 7)")
	fs.DurationVar(&o.duration, "time", 0, "`duration` of one measurement (default 1s, with -full 2s)")
	fs.DurationVar(&o.warm, "warm", 300*time.Millisecond, "`duration` of load before it")
	fs.StringVar(&o.scenarios, "scenarios", "", "`regexp` of scenarios to run, those of -full included; list prints them")
	fs.StringVar(&o.peers, "peers", "", "`list` of peers, comma-separated (default those of each scenario)")
	fs.StringVar(&o.bin, "bin", "bin/fairlead", "Fairlead's executable `file`")
	fs.StringVar(&o.base, "base", "", "another of Fairlead's executable `files`, measured beside it as peer fairlead-base where -peers names that")
	fs.StringVar(&o.out, "out", "", "`folder` for results.json, table.md and profiles (default: only print)")
	fs.BoolVar(&o.profile, "profile", false, "after each scenario's rounds, load Fairlead once more and take a CPU profile (needs -out)")
	fs.IntVar(&o.watches, "watches", 2000, "`number` of watches")
	fs.DurationVar(&o.hold, "hold", 0, "`duration` for which idle watches are looked at, every half minute (default: not at all)")
	fs.IntVar(&o.tokens, "tokens", 0, "largest `number` of distinct tokens (default 1000, with -full 100000)")
	fs.IntVar(&o.services, "apiservices", 0, "largest `number` of APIServices (default 100, with -full 10000)")
	fs.IntVar(&o.least, "apiservices-from", 10, "`number` of APIServices that comes after 1: the largest leaves out what is between")
	fs.DurationVar(&o.probes, "probe-interval", 10*time.Minute, "how often each of many APIServices is probed (`duration`): 10,000 at Fairlead's own 10s need more than this machine may have")
	fs.StringVar(&o.args, "args", "", "further `arguments` of Fairlead, separated by spaces")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	pick := func(quick, full int) int {
		if o.full {
			return full
		}
		return quick
	}
	if o.rounds == 0 {
		o.rounds = pick(3, 7)
	}
	if o.duration == 0 {
		o.duration = time.Duration(pick(1, 2)) * time.Second
	}
	if o.tokens == 0 {
		o.tokens = pick(1_000, 100_000)
	}
	if o.services == 0 {
		o.services = pick(100, 10_000)
	}
	if o.profile && o.out == "" {
		return nil, errors.New("-profile needs -out")
	}
	return o, nil
}

func bench(ctx context.Context, o *options, stdout io.Writer) error {
	match, err := regexp.Compile("^(" + o.scenarios + ")$")
	if err != nil {
		return err
	}
	var chosen []scenario
	for _, s := range o.list() {
		if o.scenarios == "list" {
			fmt.Fprintf(stdout, "%-14s %s\n", s.name, s.about)
		} else if match.MatchString(s.name) || o.scenarios == "" && (o.full || s.quick) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	w, err := boot(ctx, o)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }() // everything in it is thrown away
	r := &results{Machine: machine(), Options: fmt.Sprintf("%d rounds of %v", o.rounds, o.duration)}
	for _, s := range chosen {
		fmt.Fprintf(os.Stderr, "bench: %s: %s\n", s.name, s.about)
		if err := s.run(ctx, w, o, r); err != nil {
			return fmt.Errorf("running %s: %w", s.name, err)
		}
		// After each: what was measured is kept if a later one fails.
		if err := r.save(o.out); err != nil {
			return err
		}
	}
	_, err = io.WriteString(stdout, r.table())
	return err
}

// boot starts the cluster and the extension server. Peers are started when a scenario first wants
// them.
func boot(ctx context.Context, o *options) (*world, error) {
	if _, err := exec.LookPath(o.bin); err != nil {
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &world{self: self, bin: bin, base: o.base, args: strings.Fields(o.args)}
	dir, err := os.MkdirTemp("", "fairlead-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // kube-apiserver has read the file when it is ready
	file := filepath.Join(dir, "tokens.csv")
	if err := writeTokens(file, o.tokens); err != nil {
		return nil, err
	}
	if w.Cluster, err = cluster.Start(ctx, cluster.Config{AdminGroup: "bench-masters", APIServerArgs: []string{"--token-auth-file=" + file}}); err != nil {
		return nil, err
	}
	if err := w.prepare(ctx); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *world) prepare(ctx context.Context) (err error) {
	if w.tls, err = clientTLS(w.PKI.Serving.CertFile); err != nil {
		return err
	}
	if err := w.grant(ctx); err != nil {
		return err
	}
	if w.backend, _, err = startBackend(ctx, w.Cluster, w.self); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // an availability check takes seconds
	defer cancel()
	return w.WaitAvailable(ctx, w.Endpoint(), group+"/v1")
}

func (r *results) save(dir string) error {
	if dir == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), data, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "table.md"), []byte(r.table()), 0o600)
}
