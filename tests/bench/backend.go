package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

const (
	group     = "bench.example.com"
	resources = "/apis/" + group + "/v1/namespaces/default/objects"
	// objectSize and listSize are the sizes of an ordinary object and a list of a hundred.
	objectSize = 1 << 10
	listSize   = 100 << 10
	// eventPath makes the backend send an event on every watch; requests for it bypass proxies.
	eventPath = "/event"
)

// extension is the extension server behind all peers: an object, lists of any size, endless bodies
// and watches, all from memory. It does not authenticate, because its own work is not measured.
type extension struct {
	bodies map[int][]byte // :: size → JSON; filled before it serves
	event  []byte

	// mu guards tick.
	mu   sync.Mutex
	tick chan struct{} // closed and replaced at every event
}

func serveBackend(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("backend", flag.ContinueOnError)
	address := flags.String("address", "", "`host:port` to serve on; addresses that follow it have the same port")
	cert := flags.String("tls-cert-file", "", "PEM `file`")
	key := flags.String("tls-private-key-file", "", "PEM `file`")
	try.Do(flags.Parse(args))
	e := &extension{bodies: map[int][]byte{}, tick: make(chan struct{})}
	for _, size := range []int{objectSize, 16 << 10, listSize, 1 << 20} {
		e.bodies[size] = object(size)
	}
	e.event = append(append([]byte(`{"type":"ADDED","object":`), object(objectSize)...), '}', '\n')
	ended := make(chan error, addresses)
	for i := range addresses {
		go func() { ended <- serveTLS(ctx, addressOf(*address, i), *cert, *key, e) }() // ends with ctx
	}
	return <-ended
}

// addresses is how many the extension server has: an endpoint each in scenario rest.
const addresses = 2000

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

// maxStreams is more than any scenario opens on a connection.
const maxStreams = 1100

// object returns JSON of exactly size bytes.
func object(size int) []byte {
	const head = `{"kind":"Object","apiVersion":"bench.example.com/v1","metadata":{"name":"one","namespace":"default"},"data":"`
	return append(append([]byte(head), bytes.Repeat([]byte("x"), size-len(head)-2)...), `"}`...)
}

// ServeHTTP answers discovery, objects, lists and watches.
func (e *extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == eventPath:
		e.mu.Lock()
		close(e.tick)
		e.tick = make(chan struct{})
		e.mu.Unlock()
	case r.Method == http.MethodPost:
		_, _ = io.Copy(io.Discard, r.Body) // until the client leaves
	case strings.HasSuffix(path, "/objects/endless"):
		for err := error(nil); err == nil; {
			_, err = w.Write(e.bodies[listSize])
		}
	case strings.Contains(r.URL.RawQuery, "watch=true"):
		e.watch(w, r)
	case strings.HasSuffix(path, "/objects"):
		e.send(w, listSize)
	case strings.HasSuffix(path, "/objects/one"):
		e.send(w, objectSize)
	case strings.Contains(path, "/objects/size-"):
		size, _ := strconv.Atoi(path[strings.LastIndexByte(path, '-')+1:])
		e.send(w, size)
	case strings.Count(path, "/") == 3:
		discover(w, strings.TrimPrefix(path, "/apis/"))
	default: // probes, and documents that an extension server may lack
		http.NotFound(w, r)
	}
}

func (e *extension) send(w http.ResponseWriter, size int) {
	body, ok := e.bodies[size]
	if !ok {
		http.Error(w, "no object of that size", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the load handles a client that left
}

// watch sends one event at once and one per tick, until the client leaves.
func (e *extension) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
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

func discover(w http.ResponseWriter, groupVersion string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": groupVersion,
		"resources": []any{map[string]any{"name": "objects", "singularName": "object", "namespaced": true, "kind": "Object", "verbs": []string{"get", "list", "watch"}}},
	})
}

func startBackend(ctx context.Context, c *cluster.Cluster, self string) (address string) {
	b := cluster.Backend{
		Namespace: "bench", Service: "extension", CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{group + "/v1"},
		// Some scenarios have a thousand running requests, and a hundred thousand watches.
		Annotations: map[string]string{"fairlead.dev/max-inflight": "2000", "fairlead.dev/max-longrunning": "120000"},
	}
	at, args, err := c.ExtensionArgs(&b)
	try.Do(err)
	address = strings.TrimPrefix(at.URL, "https://")
	own := []string{"backend", "-address=" + address}
	for _, a := range args {
		if strings.HasPrefix(a, "--tls-") {
			own = append(own, a)
		}
	}
	try.Get(c.Run(ctx, cluster.Command{Name: "extension", Path: self, Args: own, Ready: cluster.Listens(address)}))
	try.Do(c.Register(ctx, b))
	return address
}
