// Command fairlead-dev starts a whole cluster on loopback in one command: etcd, kube-apiserver,
// kube-controller-manager, Kubernetes' sample extension server, and Fairlead in front of them.
// `make run` calls it. With -standalone (`make standalone`) there is no Kubernetes: only etcd, two
// Fairleads over it and an extension server.
//
// It writes a kubeconfig that points at Fairlead, prints what to try, and runs until it is
// interrupted. If one part dies the others keep running. Nothing survives it. It is for trying and
// developing; it never touches an existing cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "fairlead-dev:", printable.Lines(err.Error()))
		os.Exit(1)
	}
}

var errUsage = errors.New("usage") // returned after the flag package has printed the mistake

type options struct {
	dir               string
	fairlead          string
	port, adminPort   int
	controllerManager bool
	standalone        bool
	later             string   // command
	args              []string // passed on to fairlead serve
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	defer try.Catch(&err)
	flags := flag.NewFlagSet("fairlead-dev", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dir, "dir", ".dev", "folder for the kubeconfig, kubectl, keys, data and logs; its subfolder cluster is emptied at start")
	flags.StringVar(&o.fairlead, "fairlead", "", "fairlead executable (default: the one next to this program)")
	flags.IntVar(&o.port, "secure-port", 6443, "Fairlead's front door; if it is not free, any free port")
	flags.IntVar(&o.adminPort, "admin-secure-port", 6444, "Fairlead's admin port; if it is not free, any free port")
	flags.BoolVar(&o.controllerManager, "controller-manager", true, "run kube-controller-manager, through Fairlead")
	flags.BoolVar(&o.standalone, "standalone", false, "run no Kubernetes: an etcd, two Fairleads over it and an extension server")
	flags.StringVar(&o.later, "later", "", "shell command that builds what only the suggested commands need; run once Fairlead serves")
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
		o.fairlead = filepath.Join(filepath.Dir(try.Get(os.Executable())), "fairlead")
	}
	o.dir, o.fairlead = try.Get(filepath.Abs(o.dir)), try.Get(filepath.Abs(o.fairlead)) // what is printed to be copied works in any folder
	if _, err := os.Stat(o.fairlead); err != nil {
		return o, fmt.Errorf("finding fairlead (make build makes it): %w", err)
	}
	return o, nil
}

// free returns port, or zero (any port) if the port is in use, and tells so. Call it last: the parts
// before Fairlead take seconds to start, and minutes to build.
func free(port int, stderr io.Writer) int {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		tell(stderr, fmt.Sprintf("port %d is in use, so Fairlead gets a free one", port))
		return 0
	}
	_ = l.Close()
	return port
}

// run starts everything and waits for the end.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	defer try.Catch(&err)
	o := try.Get(parse(args, stderr))
	try.Do(os.MkdirAll(o.dir, 0o700))
	defer try.Get(lock(filepath.Join(o.dir, "lock")))()

	data := filepath.Join(o.dir, "cluster")
	if err := os.RemoveAll(data); err != nil { // the old store belongs to old keys
		return fmt.Errorf("removing the last cluster: %w", err)
	}
	cfg, needed, raise := cluster.Config{Dir: data, Progress: stderr}, []string{"etcd", "kube-apiserver"}, raise
	if o.standalone {
		cfg.APIServers, needed, raise, o.controllerManager = -1, []string{"etcd"}, raiseStandalone, false
	}
	// On a new machine these take minutes. All else is built while Fairlead serves.
	if _, err := tools.Paths(ctx, tools.Config{Progress: stderr}, needed...); err != nil {
		return orInterrupted(ctx, err)
	}
	begun := time.Now()
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	tell(stderr, "the control plane is ready")

	text, front, err := raise(ctx, c, o, stderr)
	if err != nil {
		return orInterrupted(ctx, err)
	}
	tell(stderr, "ready in "+time.Since(begun).Round(100*time.Millisecond).String())
	try.Get(io.WriteString(stdout, text))
	if o.controllerManager { // building it takes a minute of a new machine, and what is served does not wait for it
		if _, err := c.StartControllerManager(ctx, front.Endpoint); err != nil {
			return orInterrupted(ctx, err)
		}
		tell(stderr, "kube-controller-manager is ready, through Fairlead: namespaces can be deleted")
	}
	for err := c.Wait(ctx); ctx.Err() == nil; err = c.Wait(ctx) {
		what, _, _ := strings.Cut(err.Error(), "\n") // without the tail of its log
		tell(stderr, what+"; all other parts keep running, logs are in "+c.Dir())
	}
	tell(stderr, "interrupted, ending all parts")
	return nil
}

// raise starts the parts around the control plane, waits until they work, and returns what to try.
func raise(ctx context.Context, c *cluster.Cluster, o options, stderr io.Writer) (text string, front *cluster.Front, err error) {
	defer try.Catch(&err)
	config := cluster.Fairlead{Path: o.fairlead, Port: free(o.port, stderr), AdminPort: free(o.adminPort, stderr), Args: o.args}
	start, cancel := context.WithTimeout(ctx, 5*time.Minute) // it takes a second or two, and more on busy cores
	defer cancel()
	front = try.Get(c.StartFairlead(start, config))
	try.Do(o.buildRest(ctx, front, stderr, "kubectl", "sample-apiserver"))
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute) // some seconds, and more on busy cores
	defer cancel()
	try.Get(c.StartSampleAPIServer(ctx))
	tell(stderr, "the sample extension server is ready and registered")
	if err := c.WaitProbed(ctx, front, "v1beta1.wardle.example.com", "v1alpha1.wardle.example.com"); err != nil {
		return "", nil, fmt.Errorf("%w\n%s", err, front.Part.Tail())
	}
	try.Do(createFlunders(ctx, front.Endpoint.RESTConfig(c.Admin())))
	return try.Get(describe(ctx, c, front, o)), front, nil
}

// buildRest builds what only the suggested commands need, after Fairlead serves: a minute of a new machine.
func (o options) buildRest(ctx context.Context, front *cluster.Front, stderr io.Writer, parts ...string) error {
	tell(stderr, "fairlead serves at "+front.Endpoint.URL+"; the rest follows")
	if o.later != "" {
		cmd := exec.CommandContext(ctx, "sh", "-c", o.later)
		cmd.Stdout, cmd.Stderr = stderr, stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("running %s: %w", o.later, err)
		}
	}
	_, err := tools.Paths(ctx, tools.Config{Progress: stderr}, parts...)
	return err
}

// tell prints progress. It ignores errors: a closed terminal must not end the cluster.
func tell(w io.Writer, what string) { _, _ = fmt.Fprintln(w, "fairlead-dev:", what) }

// orInterrupted hides errors that an interrupt causes during the start.
func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lock prevents two fairlead-devs from sharing a folder: the second would delete the first one's
// store. The kernel releases the lock when the process ends.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s (another fairlead-dev uses this folder; for a second one: bin/fairlead-dev -dir FOLDER): %w", file, err)
	}
	return func() { _ = f.Close() }, nil
}
