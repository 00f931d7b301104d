package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

const (
	group     = "bench.example.com"
	resources = "/apis/" + group + "/v1/namespaces/default/objects"
	// objectSize and listSize are the sizes of an ordinary object and a list of a hundred.
	objectSize = 1 << 10
	listSize   = 100 << 10
	addresses  = 2000 // how many the extension server has: an endpoint each in scenario rest
	maxStreams = 1100 // more than any scenario opens on a connection
)

// extension is the extension server behind all peers: an object, a list, endless bodies
// and watches, all from memory. It does not authenticate, because its own work is not measured.
type extension struct {
	bodies map[string][]byte // :: last element of the path → JSON; filled before it serves
	event  []byte

	// mu guards tick.
	mu   sync.Mutex
	tick chan struct{} // closed and replaced at every event
}

// serveBackend serves on addresses with the same port. Each SIGUSR1 is an event on all watches.
func serveBackend(ctx context.Context, address, cert, key string) error {
	e := &extension{bodies: map[string][]byte{"objects": object(listSize), "one": object(objectSize)}, tick: make(chan struct{})}
	e.event = append(append([]byte(`{"type":"ADDED","object":`), e.bodies["one"]...), '}', '\n')
	events := make(chan os.Signal, 1)
	signal.Notify(events, syscall.SIGUSR1)
	go e.ring(events) // ends with the process
	ended := make(chan error, addresses)
	for i := range addresses {
		go func() { ended <- serveTLS(ctx, addressOf(address, i), cert, key, e) }() // ends with ctx
	}
	return <-ended
}

// addressOf returns the i-th address. All are loopback.
func addressOf(first string, i int) string {
	_, port, _ := strings.Cut(first, ":")
	return fmt.Sprintf("127.0.%d.%d:%s", i/250, 1+i%250, port)
}

// serveTLS serves until ctx ends, with net/http over HTTP/2 like kube-apiserver's library, and
// maxStreams per connection.
func serveTLS(ctx context.Context, address, cert, key string, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	srv := &http.Server{
		Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	return fmt.Errorf("serving: %w", srv.ServeTLS(l, cert, key))
}

// object returns JSON of exactly size bytes.
func object(size int) []byte {
	const head = `{"kind":"Object","apiVersion":"bench.example.com/v1","metadata":{"name":"one","namespace":"default"},"data":"`
	return append(append([]byte(head), bytes.Repeat([]byte("x"), size-len(head)-2)...), `"}`...)
}

// ServeHTTP answers discovery, objects, lists and watches.
func (e *extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, known := e.bodies[path.Base(r.URL.Path)]
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPost:
		_, _ = io.Copy(io.Discard, r.Body) // until the client leaves
	case strings.HasSuffix(r.URL.Path, "/objects/endless"):
		for err := error(nil); err == nil; {
			_, err = w.Write(e.bodies["objects"])
		}
	case strings.Contains(r.URL.RawQuery, "watch=true"):
		e.watch(w, r)
	case known:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body) // the load handles a client that left
	case strings.Count(r.URL.Path, "/") == 3:
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": strings.TrimPrefix(r.URL.Path, "/apis/"),
			"resources": []any{map[string]any{
				"name": "objects", "singularName": "object", "namespaced": true, "kind": "Object", "verbs": []string{"get", "list", "watch"},
			}},
		})
	default: // probes, and documents that an extension server may lack
		http.NotFound(w, r)
	}
}

// ring makes every watch send an event for each signal.
func (e *extension) ring(events <-chan os.Signal) {
	for range events {
		e.mu.Lock()
		close(e.tick)
		e.tick = make(chan struct{})
		e.mu.Unlock()
	}
}

// watch sends one event at once and one per tick, until the client leaves.
func (e *extension) watch(w http.ResponseWriter, r *http.Request) {
	for {
		e.mu.Lock()
		tick := e.tick
		e.mu.Unlock()
		if _, err := w.Write(e.event); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-tick:
		case <-r.Context().Done():
			return
		}
	}
}

func (w *world) startBackend(ctx context.Context) {
	pair := w.serving("extension", "extension.bench.svc", "localhost", "127.0.0.1")
	w.backend = freeAddress(ctx)
	w.extension = try.Get(w.Run(ctx, cluster.Command{
		Name: "extension", Path: w.self, Args: []string{"backend", w.backend, pair.CertFile, pair.KeyFile}, Ready: cluster.Listens(w.backend),
	}))
	_, port, _ := strings.Cut(w.backend, ":")
	try.Do(w.Register(ctx, cluster.Backend{
		Namespace: "bench", Service: "extension", Port: try.Get(strconv.Atoi(port)),
		CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{group + "/v1"},
		// Some scenarios have a thousand running requests, and a hundred thousand watches.
		Annotations: map[string]string{"fairlead.dev/max-inflight": "2000", "fairlead.dev/max-longrunning": "120000"},
	}))
}
