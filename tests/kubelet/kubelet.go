// Package kubelet is a stub kubelet for tests: a node that kube-apiserver can send exec, attach,
// port-forward and logs to, and that metrics-server can scrape. The streams use the library of the
// real kubelet and the container runtimes.
//
// Its containers are folders on this machine, and their processes are plain processes: nothing is
// isolated. Only members of system:masters with a certificate of the client CA may start one. It
// knows only the pods that Run has made, watches nothing and reports nothing: it is only for tests.
//
// All methods are safe for concurrent use. Close ends every process and connection.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	// idle limits the silence of a stream, and creating the time for opening streams: the kubelet's
	// own defaults.
	idle     = 4 * time.Hour
	creating = 30 * time.Second
)

// Config describes a kubelet.
type Config struct {
	// Certificate is the serving pair. Required; it must be valid for 127.0.0.1.
	Certificate tls.Certificate

	// ClientCAs verify callers. Required.
	ClientCAs *x509.CertPool

	// Dir holds the containers' folders. Required.
	Dir string
}

// Kubelet is a running stub kubelet.
type Kubelet struct {
	cfg     Config
	started time.Time
	listen  net.Listener
	server  *http.Server
	ctx     context.Context // canceled by Close
	cancel  context.CancelFunc

	mu         sync.Mutex // guards the fields below
	node       string     // its name, once joined
	containers map[string]*Container
	conns      map[net.Conn]struct{} // open ones, including those that streams have taken over
}

// New starts a kubelet on a free port of 127.0.0.1. The caller closes it.
func New(cfg Config) (*Kubelet, error) {
	if cfg.ClientCAs == nil || cfg.Dir == "" || len(cfg.Certificate.Certificate) == 0 {
		return nil, errors.New("starting kubelet: certificate, client CAs and folder are required")
	}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, fmt.Errorf("starting kubelet: %w", err)
	}
	k := &Kubelet{
		cfg: cfg, started: time.Now(), listen: l, ctx: ctx, cancel: cancel,
		containers: map[string]*Container{}, conns: map[net.Conn]struct{}{},
	}
	k.server = &http.Server{
		Handler:           k.guard(k.routes()),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cfg.Certificate}, ClientCAs: cfg.ClientCAs, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: creating,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState:         k.track,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	go func() { _ = k.server.ServeTLS(l, "", "") }() // ends with Close
	return k, nil
}

// Close ends every connection and process.
func (k *Kubelet) Close() {
	k.cancel()
	_ = k.server.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		_ = c.Close()
	}
}

// port is the port that it listens on.
func (k *Kubelet) port() int { return k.listen.Addr().(*net.TCPAddr).Port }

// track keeps open connections, because the server forgets those that streams have taken over.
func (k *Kubelet) track(c net.Conn, state http.ConnState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch state {
	case http.StateNew:
		k.conns[c] = struct{}{}
	case http.StateClosed:
		delete(k.conns, c)
	}
}

// guard admits only members of system:masters, in place of a real kubelet's authorizer.
func (k *Kubelet) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(r.TLS.PeerCertificates[0].Subject.Organization, "system:masters") {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// routes are the real kubelet's.
func (k *Kubelet) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics/resource", k.serveMetrics)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLogs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", streams(k, remotecommand.NewOptions, serveExec))
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", streams(k, remotecommand.NewOptions, serveAttach))
	mux.HandleFunc("/portForward/{namespace}/{pod}", streams(k, portforward.NewV4Options, servePortForward))
	return mux
}

// find returns the container that r names, or answers 404.
func (k *Kubelet) find(w http.ResponseWriter, r *http.Request) *Container {
	name := r.PathValue("container")
	k.mu.Lock()
	c := k.containers[r.PathValue("namespace")+"/"+r.PathValue("pod")]
	k.mu.Unlock()
	if c == nil || name != "" && name != containerName {
		http.Error(w, "no such container", http.StatusNotFound)
		return nil
	}
	return c
}

// streams finds the container and the options of a request, and calls serve.
func streams[T any](k *Kubelet, options func(*http.Request) (T, error), serve func(http.ResponseWriter, *http.Request, *Container, T)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := k.find(w, r)
		if c == nil {
			return
		}
		o, err := options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		serve(w, r, c, o)
	}
}

func serveExec(w http.ResponseWriter, r *http.Request, c *Container, o *remotecommand.Options) {
	command := r.URL.Query()["command"]
	if len(command) == 0 {
		http.Error(w, "no command", http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, c, c.pod, "", containerName, command, o, idle, creating, remotecommand.SupportedStreamingProtocols)
}

func serveAttach(w http.ResponseWriter, r *http.Request, c *Container, o *remotecommand.Options) {
	remotecommand.ServeAttach(w, r, c, c.pod, "", containerName, o, idle, creating, remotecommand.SupportedStreamingProtocols)
}

func servePortForward(w http.ResponseWriter, r *http.Request, c *Container, o *portforward.V4Options) {
	portforward.ServePortForward(w, r, c, c.pod, "", o, idle, creating, portforward.SupportedProtocols)
}

// newContainer makes the folder of a pod's only container.
func (k *Kubelet) newContainer(namespace, pod string) (*Container, error) {
	dir, err := os.MkdirTemp(k.cfg.Dir, pod+"-")
	if err != nil {
		return nil, fmt.Errorf("making container: %w", err)
	}
	c := &Container{Dir: dir, pod: pod, namespace: namespace, started: time.Now(), ctx: k.ctx, grown: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.containers[namespace+"/"+pod] = c
	return c, nil
}
