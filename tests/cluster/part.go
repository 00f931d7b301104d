package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Command describes a program to run in a cluster.
type Command struct {
	Name  string                      // used in errors and for the log file. It must be unique in its cluster.
	Path  string                      // the executable
	Args  []string                    // its arguments
	Env   []string                    // appended to this process's environment
	Netns string                      // the network namespace (of ip netns) to run it in. Empty: that of this process.
	Ready func(context.Context) error // called until it returns nil. Nil: a running process is ready.
}

// Part is a process of a cluster. It ends with this process, even if that is killed, and with Cluster.Close.
type Part struct {
	cmd    Command
	log    string
	deaths chan<- error // receives every unexpected end

	run atomic.Pointer[run] // the current or last one; nil before the first
}

// run is one process, from a start of the part to its end.
type run struct {
	process *os.Process
	done    chan struct{} // closed by supervise once the process is reaped and err is set
	err     error         // why it ended; readable once done is closed
	asked   atomic.Bool   // the end was requested
}

var errExited = errors.New("exit status 0") // why a process ended that has not failed

func (p *Part) start(ctx context.Context) error {
	line := append([]string{p.cmd.Path}, p.cmd.Args...)
	if p.cmd.Netns != "" {
		line = append([]string{"ip", "netns", "exec", p.cmd.Netns}, line...)
	}
	cmd := exec.Command(line[0], line[1:]...) // without ctx, which covers only the start; Kill and Close end the process
	cmd.Env = append(os.Environ(), p.cmd.Env...)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child keeps its own
	cmd.Stdout, cmd.Stderr = log, log
	// In a process group of its own: an interrupt at the terminal reaches only this process, which
	// ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)

	r := &run{done: make(chan struct{})}
	started := make(chan error, 1)
	go p.supervise(r, cmd, started)
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", p.cmd.Name, err)
	}
	p.run.Store(r)
	if err := p.waitReady(ctx, r); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// supervise owns the process from start to end. The kernel kills the child when the *thread* that
// forked it exits, so the goroutine is locked to its thread until the process ends.
func (p *Part) supervise(r *run, cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	r.process = cmd.Process
	started <- err
	if err != nil {
		return
	}
	err = cmp.Or(cmd.Wait(), errExited)
	r.err = fmt.Errorf("%s ended: %w\n%s", p.cmd.Name, err, p.Tail())
	close(r.done)
	if r.asked.Load() {
		return
	}
	select {
	case p.deaths <- r.err:
	default: // nobody waits, or another death is already queued
	}
}

func (p *Part) waitReady(ctx context.Context, r *run) error {
	if p.cmd.Ready == nil {
		return nil
	}
	err := eventually(ctx, p.cmd.Ready, r.done)
	if p.Ended() {
		return r.err
	}
	if err != nil {
		err = fmt.Errorf("waiting for %s: %w\n%s", p.cmd.Name, err, p.Tail())
	}
	return err
}

// Name returns the name of p's command.
func (p *Part) Name() string { return p.cmd.Name }

// PID returns the process id of the current or last run.
func (p *Part) PID() int { return p.run.Load().process.Pid }

// Done is closed when the current run has ended.
func (p *Part) Done() <-chan struct{} { return p.run.Load().done }

// Ended reports whether the current run has ended.
func (p *Part) Ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// Err returns why the last run ended, with the end of its log. Call it only after Done is closed.
func (p *Part) Err() error { return p.run.Load().err }

// Signal sends sig. After SIGTERM or SIGINT, the end counts as requested. When Signal returns,
// SIGSTOP has stopped the process; SIGCONT continues it.
func (p *Part) Signal(sig syscall.Signal) error {
	r := p.run.Load()
	if sig == syscall.SIGTERM || sig == syscall.SIGINT {
		r.asked.Store(true)
	}
	if err := r.process.Signal(sig); err != nil || sig != syscall.SIGSTOP {
		return err
	}
	return waitStopped(r.process.Pid)
}

// Stop sends SIGTERM and waits until the process has ended with exit status 0.
func (p *Part) Stop(most time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-time.After(most):
		return fmt.Errorf("%s still runs %s after SIGTERM", p.cmd.Name, most)
	}
	if err := p.Err(); !errors.Is(err, errExited) {
		return err
	}
	return nil
}

// Kill ends the process and its children at once (SIGKILL), and waits. It may be repeated.
func (p *Part) Kill() {
	r := p.run.Load()
	if r == nil {
		return
	}
	r.asked.Store(true)
	// Kill the group only while its leader is not reaped; later its number may be another's.
	select {
	case <-r.done:
	default:
		_ = syscall.Kill(-r.process.Pid, syscall.SIGKILL)
	}
	<-r.done
}

// Use makes the next runs use another executable instead of one, as an upgrade does.
func (p *Part) Use(instead, path string) {
	if p.cmd.Path == instead {
		p.cmd.Path = path
	}
	for i, a := range p.cmd.Args { // of unshare
		if a == instead {
			p.cmd.Args[i] = path
		}
	}
}

// Restart kills the process if it runs, starts it again, and waits until it is ready.
func (p *Part) Restart(ctx context.Context) error {
	p.Kill()
	return p.start(ctx)
}

// LogFile returns the file with p's output, of all runs.
func (p *Part) LogFile() string { return p.log }

// Tail returns the end of p's log.
func (p *Part) Tail() string {
	const most = 4 << 10 // about thirty lines: enough for a panic's cause, short enough for a test's output
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	size, _ := f.Seek(0, io.SeekEnd)
	tail, _ := io.ReadAll(io.NewSectionReader(f, max(0, size-most), most))
	return fmt.Sprintf("--- end of %s\n%s", filepath.Base(p.log), tail)
}
