// Package kubelet is a stub kubelet for tests: a node that kube-apiserver can send exec, attach, port-forward and logs
// to, and that metrics-server can scrape. The streams use the library of the real kubelet and the container runtimes.
//
// Its containers are folders on this machine, and their processes are plain processes: nothing is
// isolated. Only members of system:masters with a certificate of the client CA may start one. It
// knows only the pods that Run has made, watches nothing and reports nothing: it is only for tests.
//
// All methods are safe for concurrent use. Close ends every process and stream.
package kubelet

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	// idle limits the silence of a stream, and creating the time for opening streams: the kubelet's own defaults.
	idle          = 4 * time.Hour
	creating      = 30 * time.Second
	containerName = "main" // the name of every pod's only container
)

// Config describes a kubelet. All fields but Address are required.
type Config struct {
	Address     string          // where it listens, and its node's. Empty: 127.0.0.1.
	Certificate tls.Certificate // the serving pair. It must be valid for Address.
	ClientCAs   *x509.CertPool  // verify callers
	Dir         string          // holds the containers' folders
}

// Kubelet is a running stub kubelet.
type Kubelet struct {
	cfg    Config
	listen net.Listener
	server *http.Server
	ctx    context.Context // canceled by Close
	cancel context.CancelFunc

	mu         sync.Mutex // guards the fields below
	node       string     // its name, once joined
	containers map[string]*Container
}

// New starts a kubelet on a free port. The caller closes it.
func New(cfg Config) (*Kubelet, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cfg.Address = cmp.Or(cfg.Address, "127.0.0.1")
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(cfg.Address, "0"))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("starting kubelet: %w", err)
	}
	k := &Kubelet{cfg: cfg, listen: l, ctx: ctx, cancel: cancel, containers: map[string]*Container{}}
	mux := http.NewServeMux() // the real kubelet's routes
	mux.HandleFunc("GET /metrics/resource", k.serveMetrics)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/main", k.serve(serveLogs))
	mux.HandleFunc("/exec/{namespace}/{pod}/main", k.serve(serveCommand))
	mux.HandleFunc("/attach/{namespace}/{pod}/main", k.serve(serveCommand))
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.serve(servePortForward))
	k.server = &http.Server{
		// In place of a real kubelet's authorizer.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(r.TLS.PeerCertificates[0].Subject.Organization, "system:masters") {
				http.Error(w, "Forbidden", http.StatusForbidden)
				return
			}
			mux.ServeHTTP(w, r)
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cfg.Certificate}, ClientCAs: cfg.ClientCAs, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: creating,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	go func() { _ = k.server.ServeTLS(l, "", "") }() // ends with Close
	return k, nil
}

// Close ends every process and stream.
func (k *Kubelet) Close() {
	k.cancel()
	_ = k.server.Close()
}

// serve finds the container of a request and the options of its streams, and calls f.
func (k *Kubelet) serve(f func(http.ResponseWriter, *http.Request, *Container) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		c := k.containers[r.PathValue("namespace")+"/"+r.PathValue("pod")]
		k.mu.Unlock()
		if c == nil {
			http.Error(w, "no such container", http.StatusNotFound)
			return
		}
		if err := f(w, r, c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
}

// serveCommand serves an exec of a command or, without one, an attach.
func serveCommand(w http.ResponseWriter, r *http.Request, c *Container) error {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		return err
	}
	protocols := remotecommand.SupportedStreamingProtocols
	if command := r.URL.Query()["command"]; command != nil {
		remotecommand.ServeExec(w, r, c, c.pod, "", containerName, command, o, idle, creating, protocols)
	} else {
		remotecommand.ServeAttach(w, r, c, c.pod, "", containerName, o, idle, creating, protocols)
	}
	return nil
}

func servePortForward(w http.ResponseWriter, r *http.Request, c *Container) error {
	o, err := portforward.NewV4Options(r)
	if err == nil {
		portforward.ServePortForward(w, r, c, c.pod, "", o, idle, creating, portforward.SupportedProtocols)
	}
	return err
}

// serveLogs serves `kubectl logs`, with the options tailLines and follow.
func serveLogs(w http.ResponseWriter, r *http.Request, c *Container) error {
	n, q := 0, r.URL.Query()
	if tail := q.Get("tailLines"); tail != "" {
		want, err := strconv.Atoi(tail)
		if err != nil {
			return err
		}
		n = max(0, len(c.after(0))-want)
	}
	w.Header().Set("Content-Type", "text/plain")
	for {
		lines := c.after(n)
		n += len(lines)
		for _, l := range lines {
			_, _ = io.WriteString(w, l+"\n") // if the client has left, its context has ended
		}
		if follow, _ := strconv.ParseBool(q.Get("follow")); !follow {
			return nil
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.Context().Done():
			return nil
		}
	}
}

// serveMetrics serves what metrics-server scrapes: the constant usage of the node and of each
// container, which it reports as 250m and 512Mi, 100m and 64Mi.
func (k *Kubelet) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	since := float64(now.UnixMilli()) / 1e3 // only the growth of CPU time matters
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	gauge := func(name string, value float64) { fmt.Fprintf(w, "%s %f %d\n", name, value, now.UnixMilli()) }
	gauge("node_cpu_usage_seconds_total", since*0.25)
	gauge("node_memory_working_set_bytes", 512<<20)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.containers {
		labels := fmt.Sprintf(`{container=%q,namespace=%q,pod=%q}`, containerName, c.namespace, c.pod)
		gauge("container_cpu_usage_seconds_total"+labels, since*0.1)
		gauge("container_memory_working_set_bytes"+labels, 64<<20)
		fmt.Fprintf(w, "container_start_time_seconds%s %d\n", labels, c.started.Unix())
	}
}

// Container is a folder to run processes in, and a log. Its main process, for attach, repeats each line in capitals.
type Container struct {
	Dir string // its working directory

	namespace, pod string
	started        time.Time
	ctx            context.Context // canceled by Kubelet.Close

	mu    sync.Mutex // guards lines
	lines []string
}

// Log appends a line to the container's log.
func (c *Container) Log(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, what)
}

func (c *Container) after(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines[n:]
}

// ExecInContainer runs a command with the streams of an exec, without a terminal. It implements remotecommand.Executor.
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
	if in != nil {
		// Not cmd.Stdin: Wait would then also wait for the client to close its side.
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() { // ends with the client's standard input, at the latest with the connection
			_, _ = io.Copy(stdin, in)
			_ = stdin.Close()
		}()
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() { // wrapped so that the streaming library reports the exit code
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// AttachContainer connects to the main process. It implements remotecommand.Attacher.
func (c *Container) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if in == nil || out == nil {
		return errors.New("attaching: needs standard input and output")
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if _, err := io.WriteString(out, strings.ToUpper(lines.Text())+"\n"); err != nil {
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
