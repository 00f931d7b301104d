//go:build e2e

package soak

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

const (
	// readyEvery is the interval of a door's readiness checks, as a load balancer would make them.
	// It must be shorter than drainDelay.
	readyEvery = 100 * time.Millisecond
	// drainDelay is how long a door continues to serve after SIGTERM, so that this is noticed.
	drainDelay = 2 * time.Second
	// requestTimeout is Fairlead's timeout for requests to backends: short, so that hung ones do
	// not pile up.
	requestTimeout = 10 * time.Second
)

// door is one Fairlead. The first runs as long as the soak, which shows what it accumulates. The
// second is replaced again and again.
type door struct {
	*cluster.Front
	name  string
	admin *http.Client // of its admin port
	probe *http.Client // of its main port, without credentials

	ready atomic.Bool // from its readiness check
	away  atomic.Bool // it is stopped or being replaced

	mu     sync.Mutex // guards status
	status *answer.Status
	err    error // from reading it
}

func (w *world) raiseDoor(ctx context.Context, fairlead, name string) *door {
	front := must.Get(w.StartFairlead(ctx, cluster.Fairlead{Path: fairlead, Name: "fairlead-" + name, Args: []string{
		fmt.Sprint("--http2=", *lane == "h2"),
		"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL,
		"--request-timeout=" + requestTimeout.String(), "--shutdown-delay-duration=" + drainDelay.String(), "--shutdown-watch-termination-grace-period=1s",
		"--access-log=" + filepath.Join(w.Dir(), "access-"+name+".jsonl"),
	}}))(w.t)
	d := &door{Front: front, name: name}
	d.admin = &http.Client{Transport: transport(w.clientTLS(w.PKI.Admin), true), Timeout: 3 * time.Second} // a stopped door does not answer
	d.probe = &http.Client{Transport: transport(w.clientTLS(cluster.Pair{}), false), Timeout: time.Second}
	following, stop := context.WithCancel(ctx)
	var owners sync.WaitGroup
	owners.Go(func() { wait.UntilWithContext(following, d.ask, readyEvery) })
	owners.Go(func() { wait.UntilWithContext(following, d.look, 2*readyEvery) })
	w.t.Cleanup(func() { stop(); owners.Wait() })
	return d
}

// transport returns a client's transport, over HTTP/2 if h2 is set and a door offers it.
func transport(c *tls.Config, h2 bool) *http.Transport {
	h2 = h2 && *lane == "h2"
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	return &http.Transport{TLSClientConfig: c.Clone(), Protocols: &protocols, DisableCompression: true, MaxIdleConnsPerHost: 8}
}

// ask checks whether the door is ready.
func (d *door) ask(ctx context.Context) {
	_, err := ask.Get(ctx, d.probe, d.Endpoint.URL+"/readyz")
	d.ready.Store(err == nil)
}

func (d *door) look(ctx context.Context) {
	status := new(answer.Status)
	text, err := ask.Get(ctx, d.admin, d.Admin.URL+"/status")
	if err == nil {
		err = json.Unmarshal([]byte(text), status)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status, d.err = status, err
}

func (d *door) seen() (*answer.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status == nil {
		return nil, errors.New("not asked yet")
	}
	return d.status, d.err
}
