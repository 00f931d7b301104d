package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// errUsage is returned when the flag package has already said what is wrong.
var errUsage = errors.New("usage")

// options are the flags.
type options struct {
	dir               string
	fairlead          string
	port, adminPort   int
	controllerManager bool
	args              []string // passed on to fairlead serve
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("fairlead-dev", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dir, "dir", ".dev", "folder for the kubeconfig, kubectl, keys, data and logs; its subfolder cluster is emptied at start")
	flags.StringVar(&o.fairlead, "fairlead", "", "fairlead executable (default: the one beside this program)")
	flags.IntVar(&o.port, "secure-port", 6443, "Fairlead's front door; another free port is taken when this one is not")
	flags.IntVar(&o.adminPort, "admin-secure-port", 6444, "Fairlead's admin port; the same holds")
	flags.BoolVar(&o.controllerManager, "controller-manager", true, "run kube-controller-manager, through Fairlead")
	flags.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: fairlead-dev [flags] [-- flags of fairlead serve]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errUsage
	}
	o.args = flags.Args()
	if o.fairlead == "" {
		self, err := os.Executable()
		if err != nil {
			return o, err
		}
		o.fairlead = filepath.Join(filepath.Dir(self), "fairlead")
	}
	if _, err := os.Stat(o.fairlead); err != nil {
		return o, fmt.Errorf("finding fairlead (make build makes it): %w", err)
	}
	o.port, o.adminPort = free(o.port), free(o.adminPort)
	return o, nil
}

// free returns port, or zero (any) when somebody already listens on it.
func free(port int) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)) //nolint:noctx // binding a loopback port does not block
	if err != nil {
		return 0
	}
	_ = l.Close()
	return port
}

// run brings everything up and waits for the end.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(o.dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()

	data := filepath.Join(o.dir, "cluster")
	if err := os.RemoveAll(data); err != nil { // yesterday's store belongs to yesterday's keys
		return fmt.Errorf("removing the last cluster: %w", err)
	}
	// All parts before any is started, so that a fresh machine sees what its minutes go into.
	for _, name := range tools.Default() {
		if _, err := tools.Path(ctx, tools.Config{Progress: stderr}, name); err != nil {
			return err
		}
	}
	begun := time.Now()
	c, err := cluster.Start(ctx, cluster.Config{Dir: data, Progress: stderr})
	if err != nil {
		return orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	tell(stderr, "etcd and kube-apiserver are ready")

	front, err := raise(ctx, c, o, stderr)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	tell(stderr, "all ready in "+time.Since(begun).Round(100*time.Millisecond).String())
	if err := describe(ctx, stdout, c, front, o); err != nil {
		return err
	}
	if err := c.Wait(ctx); ctx.Err() == nil {
		return err
	}
	tell(stderr, "interrupted, ending all parts")
	return nil
}

// raise starts what stands around the control plane and waits until it works from end to end.
func raise(ctx context.Context, c *cluster.Cluster, o options, stderr io.Writer) (*cluster.Front, error) {
	// 1 min: everything here takes two or three seconds on two cores.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := c.StartSampleAPIServer(ctx); err != nil {
		return nil, err
	}
	tell(stderr, "the sample extension server is ready and registered")
	front, err := c.StartFairlead(ctx, cluster.Fairlead{Path: o.fairlead, Port: o.port, AdminPort: o.adminPort, Args: o.args})
	if err != nil {
		return nil, err
	}
	tell(stderr, "fairlead is ready")
	if o.controllerManager {
		if _, err := c.StartControllerManager(ctx, front.Endpoint); err != nil {
			return nil, err
		}
	}
	if err := c.WaitAvailable(ctx, front.Endpoint, "wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, front.Part.Tail())
	}
	return front, createFlunders(ctx, front.Endpoint.RESTConfig(c.Admin()))
}

// tell reports progress. A terminal that has gone away is no reason to end a cluster.
func tell(w io.Writer, what string) { _, _ = fmt.Fprintln(w, "fairlead-dev:", what) }

// orInterrupted hides what an interrupt during the start makes fail.
func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
