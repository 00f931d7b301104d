package kubelet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// containerName is the name of every pod's only container.
const containerName = "main"

// Container is a folder to run processes in, and a log. Its main process, for attach, repeats each
// line in capitals.
type Container struct {
	// Dir is its working directory.
	Dir string

	namespace, pod string
	started        time.Time
	ctx            context.Context // canceled by Kubelet.Close

	mu    sync.Mutex // guards the fields below
	lines []string
	grown chan struct{} // closed and replaced when lines are added
}

// ExecInContainer runs a command with the streams of an exec, without a terminal. It implements
// remotecommand.Executor.
func (c *Container) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = c.Dir
	if out != nil { // a nil io.WriteCloser would become a non-nil io.Writer
		cmd.Stdout = out
	}
	if errs != nil {
		cmd.Stderr = errs
	}
	if in == nil {
		return exitCode(cmd.Run())
	}
	// Not cmd.Stdin: Wait would then also wait for the client to close its side.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() { // ends with the client's standard input, at the latest with the connection
		_, _ = io.Copy(stdin, in)
		_ = stdin.Close()
	}()
	return exitCode(cmd.Run())
}

// exitCode wraps an error so that the streaming library reports the exit code.
func exitCode(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// AttachContainer connects to the main process. It implements remotecommand.Attacher.
func (c *Container) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if in == nil {
		return c.follow(ctx, out, c.count(), true)
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer := strings.ToUpper(lines.Text())
		c.Log(answer)
		if out == nil {
			continue
		}
		if _, err := io.WriteString(out, answer+"\n"); err != nil {
			return err
		}
	}
	return lines.Err()
}

// PortForward connects a stream to a port of this machine. It implements portforward.PortForwarder.
func (c *Container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("forwarding port %d: %w", port, err)
	}
	defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	go func() { // ends with the stream, at the latest with the connection
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	_ = stream.Close()
	return err
}
