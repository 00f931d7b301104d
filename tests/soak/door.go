package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
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

	stop   context.CancelFunc
	owners sync.WaitGroup
}

func (w *world) raiseDoors(ctx context.Context) error {
	for i, name := range []string{"a", "b"} {
		front, err := w.StartFairlead(ctx, cluster.Fairlead{Path: w.o.fairlead, Name: "fairlead-" + name, Args: []string{
			fmt.Sprint("--http2=", w.o.lane == "h2"),
			"--local-apiserver=" + w.EndpointOf(0).URL + "," + w.EndpointOf(1).URL,
			"--request-timeout=" + requestTimeout.String(), "--shutdown-delay-duration=" + drainDelay.String(), "--shutdown-watch-termination-grace-period=1s",
			"--access-log=" + filepath.Join(w.Dir(), "access-"+name+".jsonl"),
		}})
		if err != nil {
			return err
		}
		d := &door{Front: front, name: name}
		w.doors[i] = d
		nobody, err := w.clientTLS(cluster.Pair{})
		if err != nil {
			return err
		}
		admin, err := w.clientTLS(w.PKI.Admin)
		if err != nil {
			return err
		}
		d.admin = &http.Client{Transport: transport(admin, true), Timeout: 3 * time.Second} // a stopped door does not answer
		d.probe = &http.Client{Transport: transport(nobody, false), Timeout: time.Second}
		var following context.Context
		following, d.stop = context.WithCancel(context.WithoutCancel(ctx))
		d.owners.Go(func() { follow(following, readyEvery, d.ask) })
		d.owners.Go(func() { follow(following, 2*readyEvery, d.look) })
	}
	return nil
}

func (w *world) clientTLS(pair cluster.Pair) (*tls.Config, error) {
	return rest.TLSConfigFor(w.Endpoint().RESTConfig(cluster.Credentials{Pair: pair}))
}

// transport speaks one of both protocols.
func transport(c *tls.Config, h2 bool) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	return &http.Transport{TLSClientConfig: c.Clone(), Protocols: &protocols, DisableCompression: true, MaxIdleConnsPerHost: 8}
}

// follow asks again and again until ctx ends.
func follow(ctx context.Context, every time.Duration, ask func(context.Context)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ask(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ask finds out whether the door takes requests.
func (d *door) ask(ctx context.Context) {
	_, err := get(ctx, d.probe, d.Endpoint.URL+"/readyz")
	d.ready.Store(err == nil)
}

// look reads the door's status.
func (d *door) look(ctx context.Context) {
	status := new(answer.Status)
	text, err := get(ctx, d.admin, d.Admin.URL+"/status")
	if err == nil {
		err = json.Unmarshal(text, status)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status, d.err = status, err
}

// seen is the door's latest status.
func (d *door) seen() (*answer.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status == nil {
		return nil, errors.New("not asked yet")
	}
	return d.status, d.err
}

// forget ends what follows the door; its process is the cluster's.
func (d *door) forget() {
	if d.stop != nil {
		d.stop()
	}
	d.owners.Wait()
}

// get reads what url answers, if that is 200.
func get(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", url, res.Status, body)
	}
	return body, err
}
