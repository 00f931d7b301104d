// Command bench compares Fairlead with its peers: kube-apiserver's own aggregator, a bare httputil.ReverseProxy,
// HAProxy, nginx and nghttpx, all in front of the same extension server. It starts a cluster on loopback, loads the
// peers in turn, round after round, and prints what a request cost each of them: as ratios within a round, because
// absolute figures drift with the machine.
//
// docs/evidence/measurements.md explains the figures. `make bench` runs it.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs a subcommand: bench is also the extension server and the bare proxy.
func command(ctx context.Context, args []string) (err error) {
	defer try.Catch(&err)
	switch {
	case len(args) == 4 && args[0] == "backend":
		return serveBackend(ctx, args[1], args[2], args[3])
	case len(args) == 6 && args[0] == reverse:
		return serveReverse(ctx, args[1], args[2], args[3], args[4], args[5])
	}
	bench(ctx, try.Get(parse(args)), os.Stdout)
	return nil
}

type options struct {
	full      bool
	rounds    int
	duration  time.Duration
	scenarios string
	peers     string
	bin       string
	before    string
	out       string
	profile   bool
	watches   int
}

func parse(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.BoolVar(&o.full, "full", false, "all scenarios, seven rounds of 2 s (some 55 min); otherwise the first few, three rounds of 1 s (some 2 min)")
	fs.IntVar(&o.rounds, "rounds", 0, "`number` of interleaved rounds (default 3, with -full 7)")
	fs.DurationVar(&o.duration, "time", 0, "`duration` of one measurement (default 1s, with -full 2s)")
	fs.StringVar(&o.scenarios, "scenarios", "", "`regexp` of scenarios to run, those of -full included; list prints them")
	fs.StringVar(&o.peers, "peers", "", "`list` of peers, comma-separated (default those of each scenario)")
	fs.StringVar(&o.bin, "bin", "bin/fairlead", "Fairlead's executable `file`")
	fs.StringVar(&o.before, "before", "", "another Fairlead's executable `file`: the peer named before")
	fs.StringVar(&o.out, "out", "", "`folder` for profiles")
	fs.BoolVar(&o.profile, "profile", false, "after each scenario's rounds, load Fairlead once more and take a CPU profile (needs -out)")
	fs.IntVar(&o.watches, "watches", 2000, "`number` of watches")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	o.rounds = cmp.Or(o.rounds, o.pick(3, 7))
	o.duration = cmp.Or(o.duration, time.Duration(o.pick(1, 2))*time.Second)
	if o.profile && o.out == "" {
		return nil, errors.New("-profile needs -out")
	}
	return o, nil
}

// pick selects an amount: quick, or full with -full.
func (o *options) pick(quick, full int) int {
	if o.full {
		return full
	}
	return quick
}

func bench(ctx context.Context, o *options, stdout io.Writer) {
	match := try.Get(regexp.Compile("^(" + o.scenarios + ")$"))
	chosen := slices.DeleteFunc(o.list(), func(s scenario) bool {
		if o.scenarios == "list" {
			fmt.Fprintf(stdout, "%-14s %s\n", s.name, s.about)
		}
		return !match.MatchString(s.name) && (o.scenarios != "" || !o.full && !s.quick)
	})
	if len(chosen) == 0 {
		return
	}
	fmt.Fprintf(stdout, "%s; %d rounds of %v. Ratios are Fairlead's by the peer's within a round. Least–median–most, or the median.\n",
		machine(), o.rounds, o.duration)
	w := boot(ctx, o)
	defer func() { _ = w.Close() }()                   // its state is discarded
	defer func() { fmt.Fprint(stdout, w.r.table()) }() // also if a scenario fails
	for _, s := range chosen {
		fmt.Fprintf(os.Stderr, "bench: %s: %s\n", s.name, s.about)
		s.run(ctx, w)
	}
}

// boot starts the cluster and the extension server. Peers are started by the first scenario that uses them.
func boot(ctx context.Context, o *options) *world {
	try.Get(exec.LookPath(o.bin)) // built by make build
	dir := try.Get(os.MkdirTemp("", "fairlead-bench-"))
	defer os.RemoveAll(dir) // kube-apiserver has read the file once it is ready
	file := filepath.Join(dir, "tokens.csv")
	writeToken(file)
	w := &world{o: o, self: try.Get(os.Executable()), peers: map[string]*peer{}}
	w.Cluster = try.Get(cluster.Start(ctx, cluster.Config{AdminGroup: masters, APIServerArgs: []string{"--token-auth-file=" + file}}))
	// Of a test machine's addresses its servers' certificates name only loopback.
	w.tls = &tls.Config{RootCAs: try.Get(certutil.NewPool(w.PKI.Serving.CertFile)), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	w.grant(ctx)
	w.startBackend(ctx)
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // an availability check takes seconds
	defer cancel()
	try.Do(w.WaitAvailable(ctx, w.Endpoint(), group+"/v1"))
	return w
}
