// Command directory shows Fairlead without a cluster: two extension servers, and in front of them a
// Fairlead that reads its APIServices from a folder of manifests. `make example` calls it.
//
// It makes its own keys, writes the folder and two kubeconfigs (of an administrator, and of a
// sailor who may only read), prints what to try, and runs until it is interrupted or Fairlead ends.
// Only its folder remains.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

type options struct {
	dir, fairlead   string
	port, adminPort int
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("directory", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dir, "dir", ".example", "folder for the registry, kubeconfigs, keys and the log")
	flags.StringVar(&o.fairlead, "fairlead", "bin/fairlead", "fairlead executable (make build makes it)")
	flags.IntVar(&o.port, "secure-port", 6443, "Fairlead's front door; if it is not free, any free port")
	flags.IntVar(&o.adminPort, "admin-secure-port", 6444, "Fairlead's admin port; if it is not free, any free port")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err1, err2 error // what is printed to be copied works in any folder
	o.dir, err1 = filepath.Abs(o.dir)
	o.fairlead, err2 = filepath.Abs(o.fairlead)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	unlock, err := lock(o.dir)
	if err != nil {
		return err
	}
	defer unlock()
	h, err := build(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer h.close()
	p, err := h.startFairlead(ctx)
	if err != nil {
		return err
	}
	defer p.end()
	if err := h.waitReady(ctx, p); err != nil && ctx.Err() == nil {
		return fmt.Errorf("waiting for the extension servers, see %s: %w", h.file("fairlead.log"), err)
	}
	if ctx.Err() == nil {
		err = h.describe(stdout)
	}
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(stderr, "example: interrupted, stopping")
		return nil
	case <-p.done:
		return fmt.Errorf("fairlead ended, see %s: %w", h.file("fairlead.log"), p.cause())
	}
}

// lock keeps a second example out of the folder: it would replace the keys and addresses of the
// first one. The kernel releases the lock when the process ends.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s (another example uses this folder; for a second one: "+
			"make example EXAMPLEARGS=-dir=FOLDER): %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// process is a running Fairlead.
type process struct {
	stop context.CancelFunc
	done chan struct{} // closed once it has ended and err is set
	err  error
}

// end stops the process and waits until it has ended.
func (p *process) end() {
	p.stop()
	<-p.done
}

var errEnded = errors.New("exit code 0")

// cause returns why the process ended unexpectedly.
func (p *process) cause() error {
	if p.err == nil {
		return errEnded
	}
	return p.err
}

// startFairlead runs fairlead serve until end is called.
func (h *harbour) startFairlead(ctx context.Context) (*process, error) {
	args, err := h.fairleadArgs()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(h.file("fairlead.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own descriptor
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(life, h.fairlead, args...) //nolint:gosec // the user's own executable
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // draining takes less than a second here
	// Its own process group: an interrupt at the terminal reaches only us, and a second signal
	// would cut Fairlead's drain short.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		stop()
		return nil, fmt.Errorf("starting fairlead (make build makes it): %w", err)
	}
	p := &process{stop: stop, done: make(chan struct{})}
	go func() { // ends with the process
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (h *harbour) file(name string) string { return filepath.Join(h.dir, name) }
