// Command directory shows Fairlead without a cluster: two extension servers, and in front of them a Fairlead whose APIServices come from a folder of manifests.
// `make example` calls it.
//
// It makes keys that nobody else has, writes the folder and two kubeconfigs (an administrator's, and that of a sailor who may only read), prints what to try, and
// runs until it is interrupted or Fairlead ends. Nothing but its folder survives it.
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

// options are the flags.
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
	flags.IntVar(&o.port, "secure-port", 6443, "Fairlead's front door; 0 is a free one")
	flags.IntVar(&o.adminPort, "admin-secure-port", 6444, "Fairlead's admin port; 0 is a free one")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil { // kubeconfigs are read from anywhere
		return err
	}
	h, err := build(ctx, o)
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
		_, _ = fmt.Fprintln(stderr, "example: interrupted, ending all")
		return nil
	case <-p.done:
		return fmt.Errorf("fairlead ended, see %s: %w", h.file("fairlead.log"), p.cause())
	}
}

// process is a Fairlead that runs.
type process struct {
	stop context.CancelFunc
	done chan struct{} // closed once it has ended and err is set
	err  error
}

// end ends it and returns when it has ended.
func (p *process) end() {
	p.stop()
	<-p.done
}

var errEnded = errors.New("exit code 0")

// cause is why it ended although it should have gone on.
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
	defer log.Close() // the child keeps its own
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(life, h.fairlead, args...) //nolint:gosec // the user's own executable
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // it drains; nothing here takes a second
	// A group of its own: an interrupt at the terminal reaches us alone, and a second signal would cut Fairlead's draining short.
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
