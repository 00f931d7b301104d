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
	// readyEvery is how often a door is asked whether it takes requests, as a load balancer would.
	// It has to notice within drainDelay.
	readyEvery = 100 * time.Millisecond
	// drainDelay is how long a door that is told to stop goes on serving, so that this is noticed.
	drainDelay = 2 * time.Second
	// requestTimeout is Fairlead's bound for requests to backends: short, so that hangs do not pile
	// up.
	requestTimeout = 10 * time.Second
)

// door is one Fairlead. The first one lives as long as the soak, so that what it piles up is seen;
// the second is replaced again and again.
type door struct {
	*cluster.Front
	name  string
	admin *http.Client // of its admin port
	probe *http.Client // of its main port, as nobody

	ready atomic.Bool // says its readiness check
	away  atomic.Bool // its process is being replaced

	mu     sync.Mutex // guards status
	status *answer.Status
	err    error // of reading it
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

func transport(c *tls.Config, h2 bool) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	return &http.Transport{TLSClientConfig: c.Clone(), Protocols: &protocols, DisableCompression: true, MaxIdleConnsPerHost: 8}
}

// ask finds out whether the door takes requests.
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
